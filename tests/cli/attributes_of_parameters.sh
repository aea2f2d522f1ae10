#!/usr/bin/env bash
# A Parameter's Python attributes stay in files of torch; a warning reports their loss elsewhere.
. "$(dirname "$0")/common.sh"
python3 - <<'P'
import zipfile
def text(value):
    return b"X" + len(value).to_bytes(4, "little") + value
hooks = b"ccollections\nOrderedDict\n)R"
def save(path, storage, attribute):
    storage = b"(" + text(b"storage") + b"ctorch\n" + storage + b"\n" + text(b"0") + text(b"cpu") + b"K\x02tQ"
    tensor = b"ctorch._utils\n_rebuild_tensor_v2\n(" + storage + b"K\x00K\x02\x85K\x01\x85\x89" + hooks + b"tR"
    state = b"}" + text(b"foo") + (attribute or tensor) + b"s"
    value = b"ctorch._utils\n_rebuild_parameter_with_state\n(" + tensor + b"\x88" + hooks + state + b"tR"
    with zipfile.ZipFile(path, "w") as file:
        for name, content in [("data.pkl", b"\x80\x02}" + text(b"p") + value + b"s."), ("byteorder", b"little"),
                              ("data/0", bytes(16 if storage.count(b"Long") else 8)), ("version", b"3\n")]:
            file.writestr("archive/" + name, content)
save("p.pt", b"FloatStorage", b"K\x07")
save("tensor.pt", b"FloatStorage", None)
save("function.pt", b"FloatStorage", b"cbuiltins\nmax\n")
for rank in "01":
    save(f"rank-{rank}.pt", b"LongStorage", None)
P
expect 0 inspect p.pt
is_empty err
for target in dcp safetensors; do
  expect 0 convert p.pt -o p-$target --to $target
  holds err "1 tensor is written without the attributes of its Parameter: 'p'"
done
expect 0 split p.pt -o ranks --ranks 2 --to torch-ranks
holds err "tensors are sharded and written without the attributes of their Parameters: 'p'"
expect 0 convert p.pt -o again.pt
lacks err "attributes"
grep -qF foo again.pt || fail "the attribute is not there"

# Attributes that no file can hold (tensors, classes outside the list) are not read.
for source in tensor function; do
  expect 0 digest $source.pt
  expect 0 convert $source.pt -o $source-again.pt
  holds err "$source.pt: 1 tensor is read without the attributes of its Python object: 'p'"
  expect 0 convert $source.pt -o $source.safetensors
  expect 0 diff $source-again.pt p.pt
done
expect 0 gather rank-0.pt rank-1.pt -o ranks.pt
holds err "tensors are read without the attributes of their Python objects: 'p'"
