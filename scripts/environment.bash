# The functions of scripts/test and scripts/demo for the virtual environment of a checkout, to be sourced.

now_us() {
    local now=${EPOCHREALTIME:-$(date +%s.%6N)} # bash before 5.0 has no EPOCHREALTIME
    printf '%s' "${now//[.,]/}"
}

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

# state_of_requirements: print the state of the files that pip reads in the checkout; an environment's stamp has the one
# at its installation
state_of_requirements() {
    cksum setup.cfg setup.py pyproject.toml bruce_mp/__init__.py bruce_mp/{,client/}kernels/compiled/*.p*
}
