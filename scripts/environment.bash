# Functions of scripts/test and scripts/demo, which source this file: the time, and a checkout's virtual environment.

# now_us: print the time in microseconds
now_us() {
    local now=${EPOCHREALTIME:-$(date +%s.%6N)} # bash before 5.0 has no EPOCHREALTIME
    printf '%s' "${now//[.,]/}"
}

# find_python: print the first of these interpreters that is Python 3.11 or later; fail if there is none
find_python() {
    local candidate
    for candidate in ${PYTHON:-python3 python3.13 python3.12 python3.11}; do
        if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            printf '%s' "$candidate"
            return 0
        fi
    done
    return 1
}

# state_of_requirements: print the checksums of the files in the checkout from which an installation with pip is made.
# After an installation, scripts write them into a file of the virtual environment, the stamp.  If the two are equal,
# the installation is up to date.
state_of_requirements() {
    cksum setup.cfg setup.py pyproject.toml bruce_mp/__init__.py bruce_mp/{,client/}kernels/compiled/*.p*
}
