"""torch.save files past 4 GiB. Sparse, so that they cost no disk: torch leaves the bytes of storages out (skip_data)."""
import unittest
import zipfile

import torch

from support import LiveTest, shardctl, shardctl_json

BIG = 4 * 2**30 + 4099


class Read(LiveTest):
    def test_records_over_4_gib_and_behind_them(self):
        path = self.dir / "big.pt"
        with torch.serialization.skip_data():
            torch.save({"big": torch.empty(BIG, dtype=torch.uint8), "after": torch.empty(4, dtype=torch.float32)}, path)
        after = torch.tensor([1.0, -2.0, 3.5, 4.0])
        with open(path, "r+b") as file, zipfile.ZipFile(path) as archive:
            places = [archive.getinfo(f"big/data/{i}") for i in range(2)]
            for place, at, content in ((places[0], BIG - 3, b"end"), (places[1], 0, after.numpy().tobytes())):
                file.seek(place.header_offset + 26)
                lengths = file.read(4)
                start = place.header_offset + 30 + int.from_bytes(lengths[:2], "little") + int.from_bytes(lengths[2:], "little")
                file.seek(start + at)
                file.write(content)
        self.assertGreater(places[1].header_offset, 2**32)
        tensors = {t["name"]: t for t in shardctl_json("inspect", path)["tensors"]}
        self.assertEqual(tensors["big"]["bytes"], BIG)
        self.assertEqual(shardctl("cat", path, f"big[{BIG - 3}:]", "--format", "raw"), "end")
        shardctl("gather", path, "-o", self.dir / "after.pt", "--include", "after")
        self.assertEqual(torch.load(self.dir / "after.pt")["after"].tolist(), after.tolist())
        content = torch.load(path, mmap=True)
        self.assertEqual((content["big"][-1].item(), content["after"].tolist()), (ord("d"), after.tolist()))


class Written(LiveTest):
    """Writes 4 GiB of zeros: a long test."""

    def test_clients_read_records_over_4_gib_and_behind_them(self):
        with torch.serialization.skip_data():
            torch.save({"big": torch.empty(BIG, dtype=torch.uint8), "after": torch.empty(4)}, self.dir / "sparse.pt")
        shardctl("gather", self.dir / "sparse.pt", "-o", self.dir / "out.pt", "--no-fsync")
        with zipfile.ZipFile(self.dir / "out.pt") as archive:
            self.assertEqual(archive.getinfo("out/data/0").file_size, BIG)
            self.assertEqual(archive.read("out/data/1"), bytes(16))
            self.assertGreater(archive.getinfo("out/data/1").header_offset, 2**32)
        found = torch.load(self.dir / "out.pt", mmap=True, weights_only=True)
        self.assertEqual((len(found["big"]), found["big"][-1].item(), found["after"].tolist()), (BIG, 0, [0.0] * 4))


if __name__ == "__main__":
    unittest.main()
