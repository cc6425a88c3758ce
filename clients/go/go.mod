module bruce

go 1.21
