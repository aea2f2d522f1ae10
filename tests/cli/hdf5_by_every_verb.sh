# HDF5 works with every verb like any other format: one file, files of ranks under a master, several files.
. "$(dirname "$0")/common.sh"

source=$SHARD_DATA/golden/2.11.0/plain.pt
same() { expect 0 diff --equal-nan "$1" "$2"; }
digest() { "$SHARDCTL" digest -q "$1"; }

expect 0 convert "$source" -o x.h5
same "$source" x.h5
expect 0 gather x.h5 -o back.pt
same "$source" back.pt
expect 0 inspect x.h5 --json
holds out '"format": "hdf5"'
expect 0 convert "$source" -o again.h5 -j 3 --max-memory 1MiB
cmp x.h5 again.h5 || fail "threads and memory change the bytes"
expect 0 gather "$source" -o "ranks.h5" --local-ranks 3
cmp x.h5 ranks.h5 || fail "ranks change the bytes"

echo more >>again.h5
expect 0 verify again.h5
holds out "warning gap again.h5: 5 bytes follow the end"

model m.safetensors 1048576
expect 0 split m.safetensors -o cut --to hdf5 --ranks 4
[ "$(ls cut | tr '\n' ' ')" = "master.h5 rank-00000-of-00004.h5 rank-00001-of-00004.h5 rank-00002-of-00004.h5 rank-00003-of-00004.h5 " ] || fail "other files: $(ls cut)"
same m.safetensors cut
same m.safetensors cut/master.h5
cp cut/rank-00001-of-00004.h5 cut/rank-00004-of-00005.h5
expect 0 verify cut
holds out "warning extra_file rank-00004-of-00005.h5"
rm cut/rank-00004-of-00005.h5
[ "$(digest cut)" = "$(digest m.safetensors)" ] || fail "the digest depends on the format"
expect 0 inspect cut --json
holds out '"world_size": 4'
holds out '"file": "rank-00003-of-00004.h5"'
expect 0 reshard cut -o recut --ranks 3
same m.safetensors recut
ls recut | grep -q rank-00002-of-00003.h5 || fail "reshard keeps the format"
expect 0 reshard cut -o as_dcp --to dcp --ranks 2
same m.safetensors as_dcp
expect 0 split m.safetensors -o alike --to hdf5 --like cut
same cut alike
expect 0 reshard cut -o by_ranks --ranks 3 --local-ranks 2
for file in recut/*; do cmp "$file" "by_ranks/${file#recut/}" || fail "ranks change the bytes of $file"; done

expect 0 split m.safetensors -o parts --to hdf5 --shards 2
same m.safetensors parts
ls parts | grep -q master.h5 || fail "several files have a master"

expect 0 cat cut 'w[1023:1024,0:3]'
holds out 119
expect 3 cat cut absent
expect 0 convert cut -o half.h5 --include w --cast 'weight=float16' --rename 'w=weight'
expect 0 inspect half.h5 --json
holds out '"dtype": "float16"'
expect 0 split m.safetensors -o dry --to hdf5 --ranks 4 -n
[ ! -e dry ] || fail "a dry run writes"

expect 8 inspect cut/rank-00001-of-00004.h5
holds err "pieces of one rank"
rm cut/rank-00002-of-00004.h5
expect 3 gather cut -o lost.safetensors
holds err rank-00002-of-00004.h5
[ ! -e lost.safetensors ] || fail "something is left"
rm alike/master.h5
expect 3 inspect alike
holds err master.h5
expect 2 convert m.safetensors -o x.h5 --to dcp
head -c 1000 x.h5 >short.h5
expect 4 inspect short.h5
expect 5 convert m.safetensors -o x.h5
expect 0 convert m.safetensors -o x.h5 --force
same m.safetensors x.h5

# Unsupported parts of a file are named, and refused if they are selected.
odd=$SHARD_DATA/hdf5/h5py316-types.h5
without=(--exclude compound --exclude reference --exclude variable)
expect 0 inspect "$odd" --json
[ "$(jq -r '[.objects[] | select(.type | startswith("h5py.Dataset (")) | .name] | join(" ")' out)" = "compound reference variable" ] || fail "other names"
expect 0 inspect "$odd"
holds err "datasets that cannot be read are listed as objects: 'compound', 'reference', 'variable'"
expect 8 convert "$odd" -o odd.pt --objects drop
holds err "'compound' is an h5py.Dataset (cannot read elements of this HDF5 type: compound of 20 bytes), which cannot be written; the same is true of 2 others"
[ ! -e odd.pt ] || fail "something is left"
expect 8 digest "$odd"
expect 8 diff "$odd" x.h5
expect 0 convert "$odd" -o odd.pt "${without[@]}"
same odd.pt odd.pt
expect 0 diff --equal-nan "$odd" odd.pt "${without[@]}"
expect 0 digest "$odd" "${without[@]}"
expect 0 verify "$odd"
holds out "not read (h5py.Dataset (cannot read elements of this HDF5 type: compound of 20 bytes)): 'compound'"
[ "$(grep -c "'compound'" out)" = 1 ] || fail "a dataset is reported twice"
expect 8 digest "$SHARD_DATA/hdf5/h5py316-newest-filters.h5"
holds err "'all' is an h5py.Dataset (bad version number for layout message)"
texts=$SHARD_DATA/hdf5/h5py316-texts.h5
lost="skipped attributes of unsupported types: 'ref (reference of 8 bytes)'"
expect 0 inspect "$texts"
holds err "$lost"
expect 0 convert "$texts" -o texts.pt
holds err "$lost"
same texts.pt texts.pt
expect 0 convert "$texts" -o texts.h5
holds err "$lost"
same "$texts" texts.h5
expect 0 convert "$texts" -o all-dropped.pt --objects drop

# An archive of Keras is read in its place; one that is compressed has the command that unpacks it.
archive=$SHARD_DATA/keras/archive.keras
expect 0 inspect "$archive" --json
[ "$(jq -r '[.tensors[].name] | join(" ")' out)" = "layers.dense.vars.0 layers.dense.vars.1 layers.dense_1.vars.0 layers.dense_1.vars.1" ] || fail "other names"
expect 0 gather "$archive" -o keras.pt
python3 - "$archive" <<'END'
import sys, zipfile
with zipfile.ZipFile(sys.argv[1]) as old, zipfile.ZipFile("packed it's.keras", "w", zipfile.ZIP_DEFLATED) as new:
    for name in old.namelist():
        new.writestr(name, old.read(name))
    old.extract("model.weights.h5")
END
same model.weights.h5 "$archive"
same model.weights.h5 keras.pt
expect 8 inspect "packed it's.keras"
holds err "unzip 'packed it'\\''s.keras' model.weights.h5"
expect 0 verify "$archive"

# The content decides, and a name of a different format is a warning.
cp "$SHARD_DATA/hdf5/h5py37-links.h5" odd-name.pt
(cd "$work" && python3 -c 'import zipfile; zipfile.ZipFile("odd-name.pt", "a").writestr("archive/data.pkl", b"x")')
expect 0 inspect odd-name.pt
holds err "odd-name.pt is an HDF5 file, but its name is one of the format torch"
expect 0 verify odd-name.pt
holds out "its name is one of the format torch"
