#!/usr/bin/env bash
# Writes what the program says of its options into docs/serving.md, between the two marks. A test compares.
set -euo pipefail

root=$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/.." && pwd)
file=$root/docs/serving.md
table=$(mktemp)
trap 'rm -f "$table"' EXIT

"$root/build/release/bin/calandra" help --markdown serve >"$table"
awk -v table="$table" '
  /^<!-- End of what is written. -->/ { inside = 0 }
  !inside { print }
  /^<!-- What follows is written by tools\/update_docs.sh/ { inside = 1; print ""; while ((getline line < table) > 0) print line; print "" }
' "$file" >"$file.new"
mv "$file.new" "$file"
