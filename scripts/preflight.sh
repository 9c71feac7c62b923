#!/bin/sh
# Is everything here that Lowmark needs? Prints the Python to use, or says what is missing.
# With `java` as its argument it looks for that instead, and prints nothing: only Spark needs it, so
# only targets that run all tests ask.
#
# It runs before anything is installed, so it may use nothing but a POSIX shell. The first line
# of an error is the whole story: what is needed, what was found, how to get it.
set -eu

PYTHON_NEEDED="3.11"
JAVA_NEEDED=17

fail() {
    echo "lowmark: $1" >&2
    exit 1
}

# Prints "3.12" for the Python given, or nothing if it is not one that runs.
python_version() {
    "$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null || true
}

new_enough() {
    case "$1" in
        3.*) [ "${1#3.}" -ge "${PYTHON_NEEDED#3.}" ] ;;
        *) false ;;
    esac
}

find_python() {
    found=""
    # A Python that was asked for by name is taken or refused, never passed over.
    for candidate in ${PYTHON:-python3 python3.13 python3.12 python3.11}; do
        version=$(python_version "$candidate")
        if new_enough "$version"; then
            echo "$candidate"
            return
        fi
        [ -n "$found" ] || found=$version
    done
    fail "Python $PYTHON_NEEDED or newer is needed, found ${found:-none}: install it with \`apt-get install python3 python3-venv\` or from your system's package manager, or name one with \`make PYTHON=/path/to/python3\`"
}

check_venv() {
    "$1" -c 'import ensurepip, venv' 2>/dev/null ||
        fail "Python's venv module is needed, and $1 comes without it: install it with \`apt-get install python3-venv\` or from your system's package manager"
}

# Prints "17" for `version "17.0.15"` and "8" for `version "1.8.0_412"`.
java_version() {
    "$1" -version 2>&1 | sed -n 's/.*version "\(1\.\)\{0,1\}\([0-9][0-9]*\).*/\2/p' | sed 1q
}

check_java() {
    if [ -n "${JAVA_HOME:-}" ] && [ -x "$JAVA_HOME/bin/java" ]; then
        java=$JAVA_HOME/bin/java
    else
        java=java
    fi
    version=$(java_version "$java")
    [ "${version:-0}" -ge "$JAVA_NEEDED" ] ||
        fail "Java $JAVA_NEEDED or newer is needed for the tests on Spark, found ${version:-none}: install it with \`apt-get install openjdk-$JAVA_NEEDED-jre-headless\` or from your system's package manager"
}

case "${1:-}" in
    "")
        python=$(find_python)
        check_venv "$python"
        echo "$python"
        ;;
    java) check_java ;;
    *) fail "preflight.sh takes no argument, or java: $1 is neither" ;;
esac
