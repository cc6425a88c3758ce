#!/bin/bash
# Send a message to the daemon's TCP port from bash alone.
#
#     send.sh 9000 clicks user-7 hello
#
# `bruce send` of the package has more options. Bash strings cannot hold NUL bytes.

set -eu
export LC_ALL=C # so that ${#x} counts bytes

# Print a number in big-endian order, as printf escapes: number 258 2 -> \x01\x02
number() {
    printf "%0$(($2 * 2))x" "$1" | sed 's/../\\x&/g'
}

message() {
    local topic=$1 key=$2 value=$3
    local size=$((28 + ${#topic} + ${#key} + ${#value}))
    printf '%b' "$(number $size 4)$(number 256 2)$(number 0 2)$(number 0 2)" # Size, ApiKey, ApiVersion, Flags
    printf '%b%s' "$(number ${#topic} 2)" "$topic"
    printf '%b' "$(number "$(date +%s%3N)" 8)"
    printf '%b%s' "$(number ${#key} 4)" "$key"
    printf '%b%s' "$(number ${#value} 4)" "$value"
}

if [[ $# != 4 ]]; then
    echo "usage: $0 PORT TOPIC KEY VALUE" >&2
    exit 2
fi
exec 3>"/dev/tcp/127.0.0.1/$1"
message "$2" "$3" "$4" >&3
