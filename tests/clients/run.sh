#!/usr/bin/env bash
# run.sh PROGRAM [FOLDER]: the tests of FOLDER (this one), with what npm has installed there, against PROGRAM serve. Exits with 77, which ctest
# shows as skipped, where that cannot be.
set -euo pipefail

program=$(readlink -f "$1")
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cd "$here/${2:-.}"

skip() { echo "skipped: $*"; exit 77; }
command -v node >/dev/null || skip "there is no node (package nodejs)"
cmp -s package-lock.json node_modules/.installed ||
  skip "$PWD/node_modules is not what package-lock.json says: ./calandra.sh test installs it, unless CALANDRA_PACKAGES=skip"

# What the clients would read of the person whose machine this is.
unset CALANDRA_API_KEY NODE_OPTIONS "${!OPENAI_@}" "${!ANTHROPIC_@}" "${!LANGCHAIN_@}" "${!LANGSMITH_@}" "${!PI_@}"
CALANDRA=$program exec node --test --test-reporter=spec ./*_test.js
