#!/usr/bin/env bash
# The documentation builds as a site without the network, and a broken link or anchor fails the build: site.sh
# SOURCE_DIR. Exits 77 if scripts/setup site has installed nothing.
set -euo pipefail
cd "$1"
venv=${SHARD_VENV:-$PWD/.venv}
[ -e "$venv/site/installed" ] || { echo "no generator is installed in $venv/site" && exit 77; }

pictures=$(mktemp -d)
trap 'rm -rf "$pictures"' EXIT
python3 -B docs/site/pictures.py "$pictures"
for picture in "$pictures"/*.svg; do
  cmp "$picture" "docs/images/$(basename "$picture")" || { echo "FAIL: scripts/site draws a different picture; commit it" && exit 1; }
done
scripts/site
for page in index.html docs/start.html docs/ci.html formats/dcp/index.html CHANGELOG.html; do
  [ -s "build/site/$page" ] || { echo "FAIL: there is no $page" && exit 1; }
done
grep -q 'cron' build/site/docs/ci.html || { echo "FAIL: the examples are not in docs/ci.html" && exit 1; }
grep -q 'name="description" content="A folder with .metadata' build/site/docs/answers/merge-distcp.html ||
  { echo "FAIL: an answer has no description for search engines" && exit 1; }
if grep -L '<meta name="description" content="[^"]*">' build/site/docs/answers/*.html | grep .; then
  echo "FAIL: a quotation mark ends the description of these pages"
  exit 1
fi
python3 -B tests/browser/questions.py build/site
grep -q 'answers/merge-distcp' build/site/docs/start.html || { echo "FAIL: the answers are not in the navigation" && exit 1; }
grep -q '../formats/hdf5/' build/site/docs/start.html || { echo "FAIL: the formats are not in the navigation" && exit 1; }
grep -q 'is not an opcode of Python' build/site/docs/troubleshooting.html || { echo "FAIL: docs/troubleshooting.md lacks messages" && exit 1; }
if grep -lE '<(script|link|img)[^>]+(src|href)="https?://' $(find build/site -name '*.html') | grep .; then
  echo "FAIL: these pages load something from elsewhere"
  exit 1
fi

trap 'rm -rf "$pictures"; rm -f build/site-source/broken.md; rm -rf build/site-broken' EXIT
for link in docs/absent.md docs/start.md#absent; do
  echo "[broken]($link)" >build/site-source/broken.md
  if PYTHONPATH="$venv/site" NO_MKDOCS_2_WARNING=1 "$venv/bin/python" -m mkdocs build --config-file docs/site/mkdocs.yml \
    --site-dir "$PWD/build/site-broken" >build/site-source/log 2>&1; then
    echo "FAIL: a link to $link does not fail the build"
    exit 1
  fi
  grep -q "$link" build/site-source/log || { cat build/site-source/log && exit 1; }
done
