#!/usr/bin/env bash
# A bit of an element that changed after the save is detected by the checksum in torch's zips, for any pieces in which
# the elements are read; if torch stored none, the test expects no detection.
. "$(dirname "$0")/common.sh"
golden=$SHARD_DATA/golden/2.11.0
python3 - "$golden" <<'P'
import pathlib, shutil, sys, zipfile
golden = pathlib.Path(sys.argv[1])

def largest_record(data, begin=0):
    """Offset in `data` of the largest record of the first zip at `begin`."""
    end = data.index(b"PK\x05\x06", begin) + 22
    pathlib.Path("item").write_bytes(data[begin:end])
    record = max((r for r in zipfile.ZipFile("item").infolist() if "/data/" in r.filename), key=lambda r: r.file_size)
    name, extra = (int.from_bytes(data[begin + record.header_offset + at:][:2], "little") for at in (26, 28))
    return begin + record.header_offset + 30 + name + extra

def flip(path):
    data = bytearray(path.read_bytes())
    data[largest_record(data)] ^= 1
    path.write_bytes(data)

shutil.copy(golden / "model.pt", "model.pt")
flip(pathlib.Path("model.pt"))
for folder in ("dcp_plain_r2", "ranks_sharded_r4"):
    shutil.copytree(golden / folder, folder)
    flip(next(p for p in sorted(pathlib.Path(folder).rglob("*")) if p.suffix in (".distcp", ".pt")))

def without(name, is_left_out):
    """The flipped file with a CRC of 0 for some records."""
    with zipfile.ZipFile(golden / "model.pt") as file:
        crcs = {r.CRC for r in file.infolist() if r.CRC and is_left_out(r.filename)}
    data = pathlib.Path("model.pt").read_bytes()
    for crc in crcs:
        data = data.replace(crc.to_bytes(4, "little"), b"\0\0\0\0")
    pathlib.Path(name).write_bytes(data)

# A plain tensor that all ranks have is compared when the checkpoint is opened.
for number in 0, 1, 2:
    folder = pathlib.Path(f"differ{number}")
    shutil.copytree(golden / "ranks_differ_r2", folder)
    path = folder / "rank_1.pt"
    records = [r for r in zipfile.ZipFile(path).infolist() if "/data/" in r.filename]
    data = bytearray(path.read_bytes())
    at = records[number].header_offset
    data[at + 30 + sum(int.from_bytes(data[at + i:at + i + 2], "little") for i in (26, 28))] ^= 1
    path.write_bytes(data)

without("none.pt", lambda name: True)  # torch.serialization.set_crc32_options(False)
without("data_left_out.pt", lambda name: "/data/" in name)  # torch.serialization.skip_data(), written later
P
for source in model.pt dcp_plain_r2 ranks_sharded_r4; do
  for ranks in 1 3; do
    expect 4 convert --local-ranks $ranks "$source" -o out.pt
    holds err "checksum"
    [ ! -e out.pt ] || fail "$source, $ranks ranks: something was written"
  done
  expect 4 digest "$source"
  holds err "checksum"
  expect 0 inspect "$source"
done
expect 4 convert model.pt -o out.safetensors --objects drop
expect 0 convert none.pt -o none_again.pt
expect 0 convert data_left_out.pt -o left_out_again.pt
for source in none.pt data_left_out.pt; do  # Small records too, which verify reads whole.
  expect 0 verify $source
  holds out "records have no checksum: their writer omitted it"
done
for number in 0 1 2; do
  code=0
  "$SHARDCTL" verify differ$number >out 2>err || code=$?
  [ $code = 1 ] || [ $code = 4 ] || fail "differ$number: verify ends with exit $code"
  grep -q "checksum" out err || fail "differ$number: nothing is said of a checksum"
done

# The document beside plain pieces is a part of the checkpoint.
expect 0 split "$golden/model.pt" -o plain --to torch-ranks --as plain --ranks 2 --objects drop
sed -i 's/:/;/' plain/layout.json
for verb in inspect digest verify; do
  expect $([ $verb = verify ] && echo 1 || echo 4) $verb plain  # The files of ranks can be checked without it.
  grep -q "layout.json" out err || fail "$verb does not name the document"
done
