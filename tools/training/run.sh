#!/bin/sh
# Trains austen-5m from the Debian package of Jane Austen's novels.  MINUTES: training time.  OUT: where the model goes.
set -e
cd "$(dirname "$0")"
: "${MINUTES:=48}" "${OUT:=../../models/austen-5m}" "${WORK:=${TMPDIR:-/tmp}/austen-5m-work}" "${PYTHON:=/usr/bin/python3}"
mkdir -p "$WORK" "$OUT"
if [ ! -f "$WORK/austen.txt" ]; then
    command -v Rscript > /dev/null || {
        echo "first: apt-get install python3-torch python3-regex python3-numpy gcc r-base-core r-cran-janeaustenr" >&2; exit 1; }
    (cd "$WORK" && Rscript -e 'library(janeaustenr); writeLines(austen_books()$text, "austen.txt")')
fi
[ -f "$OUT/tokenizer.json" ] || "$PYTHON" make_tokenizer.py "$WORK/austen.txt" "$OUT/tokenizer.json"
"$PYTHON" -u train.py "$WORK/austen.txt" "$OUT/tokenizer.json" "$WORK/checkpoint.pt" --minutes "$MINUTES"
"$PYTHON" export.py "$WORK/checkpoint.pt" "$OUT"
"$PYTHON" evaluate.py "$WORK/austen.txt" "$OUT/tokenizer.json" "$WORK/checkpoint.pt"
"$PYTHON" make_reference.py "$OUT" ../reference
