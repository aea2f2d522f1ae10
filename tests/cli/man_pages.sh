#!/usr/bin/env bash
# Each verb has a man page with every option, exit code and example of the verb's help, and mandoc reports no problem.
# The same date gives the same pages.
pages_of=$SHARDCTL_PAGES
. "$(dirname "$0")/common.sh"

SOURCE_DATE_EPOCH=1700000000 "$pages_of" share
SOURCE_DATE_EPOCH=1700000000 "$pages_of" again
diff -r share again || fail "two runs made different pages"
cd share/man/man1

# plain FILE: the page as its reader sees the words: without requests, fonts and escapes.
plain() { sed -E 's/\\f[BIR]//g; s/\\-/-/g; s/\\\(aq/'"'"'/g; s/\\\(ha/^/g; s/\\\(ti/~/g; s/\\\(ga/`/g; s/\\e/\\/g; s/^\\&//' "$1"; }

verbs=$("$SHARDCTL" help | sed -n '/^Verbs:/,/^$/s/^  \([a-z]*\) .*/\1/p')
[ "$(wc -w <<<"$verbs")" -ge 16 ] || fail "verbs of help: $verbs"
[ "$(ls | wc -l)" = $(($(wc -w <<<"$verbs") + 1)) ] || fail "pages: $(ls)"
for verb in "" $verbs; do
  page=shardctl${verb:+-$verb}.1
  plain "$page" >"$work/page"
  "$SHARDCTL" help $verb --all >"$work/help"
  grep -oE '^  (-[a-z],)?--[a-z-]+' "$work/help" | grep -oE -- '--[a-z-]+' >"$work/options"
  grep -cq . "$work/options" || fail "$page: no options in help"
  while read -r option; do holds page "$option"; done <"$work/options"
  sed -n '/^Examples:/,/^$/s/^  //p' "$work/help" >"$work/examples"
  while read -r example; do holds page "$example"; done <"$work/examples"
  while read -r code _; do holds page "$code"; done < <(sed -n '/^Exit codes:/,/^$/p' "$work/help" | tail -n +2)
  holds page '.TH SHARDCTL'
  grep -q '^\.TH .* 1 "2023-11-14" ' "$work/page" || fail "$page has not the date of SOURCE_DATE_EPOCH"
done
if command -v mandoc >/dev/null; then
  mandoc -T lint -W warning ./*.1 >"$work/out" || fail "mandoc"
  mandoc -T utf8 shardctl-cat.1 | sed 's/.\x08//g' >"$work/out"
  holds out "shardctl cat checkpoint/ 'layers.0.mlp.weight[0:8,:]' --format npy > rows.npy"
else
  echo "mandoc is not installed: pages were not rendered"
fi
