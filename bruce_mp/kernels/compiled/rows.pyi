from bruce_mp.slab.rows import ProcessRow as ProcessRow
