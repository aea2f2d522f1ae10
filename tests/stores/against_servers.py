"""SeaweedFS, moto and nginx in place of the server of these tests: shardctl reads objects that boto3 uploaded, and boto3 reads
those that shardctl wrote. With the word "all", s5cmd and awscli judge too, and runs are killed and continued."""
import concurrent.futures
import json
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import client
import real_servers
import server
from writing import tree, write_safetensors

ALL = "all" in sys.argv[1:]
MEBIBYTE = 1 << 20
ODD = "odd + 100%/ü a+b.safetensors"  # Characters that a signature encodes.


class Bucket:
    """One bucket, as boto3 sees it."""

    def __init__(self, served, name="bucket", proxy=None):
        self.s3, self.name = real_servers.judge(served and served.url, proxy), name
        self.s3.create_bucket(Bucket=name)

    def put(self, local, prefix):
        """Uploads a folder, in parts of 5 MiB."""
        from boto3.s3.transfer import TransferConfig

        parts = TransferConfig(multipart_threshold=5 * MEBIBYTE, multipart_chunksize=5 * MEBIBYTE)
        for each in sorted(local.iterdir()):
            self.s3.upload_file(str(each), self.name, f"{prefix}/{each.name}", Config=parts)

    def keys(self, prefix=""):
        pages = self.s3.get_paginator("list_objects_v2").paginate(Bucket=self.name, Prefix=prefix)
        return sorted(each["Key"] for page in pages for each in page.get("Contents", []))

    def expect(self, local, key):
        """The object has the bytes of a file; or the objects below `key` are the files of a folder."""
        wanted = tree(local)
        assert self.keys(key) == sorted(key + end for end in wanted), (self.keys(key), key, sorted(wanted))
        for end, content in wanted.items():
            found = self.s3.get_object(Bucket=self.name, Key=key + end)["Body"].read()
            assert found == content, f"{key}{end} differs: {len(found)} bytes, not {len(content)}"

    def expect_clean(self):
        """No upload and no lock is left."""
        assert not self.s3.list_multipart_uploads(Bucket=self.name).get("Uploads"), "an upload is left"
        assert not [key for key in self.keys() if key.endswith(".shardctl")], self.keys()


def make_files(tool):
    """whole.safetensors, and its tensors in two files: parts."""
    sizes = {f"{letter}{i}": 6 * MEBIBYTE for letter in "ab" for i in range(2)} | {"c": 1000}
    write_safetensors(tool.work / "whole.safetensors", sizes)
    tool.expect(0, "gather", "whole.safetensors", "--max-shard-size", "13MB", "-o", "parts")
    shutil.copytree(client.DATA / "demo" / "ckpt", tool.work / "ckpt")
    return sum(sizes.values())


def check_seaweedfs(tool, folder):
    with real_servers.seaweedfs(folder / "seaweedfs") as served:
        tool.serve(served)
        whole, bucket, other = make_files(tool), Bucket(served), Bucket(served, "other")
        check_reading_and_writing(tool, bucket)
        check_codes(tool, bucket)
        # The server copies all but the header and its first 5 MiB.
        done = tool.expect(0, "gather", "s3://bucket/parts", "-o", "s3://other/merged.safetensors", "--json")
        assert json.loads(done.stdout)["bytes_cloned"] >= whole - 6 * MEBIBYTE, done.stdout
        tool.expect(0, "gather", "parts", "-o", "merged.safetensors")
        other.expect(tool.work / "merged.safetensors", "merged.safetensors")
        tool.expect(0, "reshard", "ckpt", "-o", "s3://other/dcp", "--ranks", "3", "--local-ranks", "2", "--checksum", "xxh3")
        tool.expect(0, "verify", "s3://other/dcp")
        check_race(tool, other)
        check_tls(tool, folder, served)
        if ALL:
            check_kills(tool, bucket)
            check_other_judges(tool, served, bucket)
        bucket.expect_clean()
        other.expect_clean()


def check_tls(tool, folder, served):
    """nginx with TLS in front of the store and of files. Its certificate is from a self-made authority."""
    names = ("AWS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE")
    authority, certificate, key = real_servers.make_authority(folder, "authority", "IP:127.0.0.1")
    other, _, _ = real_servers.make_authority(folder, "other", "IP:127.0.0.1")
    with real_servers.nginx(folder / "tls", secure=(certificate, key, served.url)) as secure:
        shutil.copytree(tool.work / "parts", folder / "tls" / "files" / "parts")
        https = {"AWS_ENDPOINT_URL": secure.url}
        for source in ("s3://bucket/parts", f"{secure.url}/files/parts"):
            tool.expect(3, "inspect", source, holds=("certificate", "set AWS_CA_BUNDLE"), **https)
            for name in names:
                tool.expect(3, "inspect", source, holds=("certificate", f"{other} that {name} names"), **https, **{name: other})
                tool.expect(0, "inspect", source, **https, **{name: authority})
            tool.expect(3, "inspect", source, holds="absent.pem that AWS_CA_BUNDLE names", **https, AWS_CA_BUNDLE=folder / "absent.pem")
            tool.expect(0, "diff", source, "whole.safetensors", **https, AWS_CA_BUNDLE=authority)
        by_name = secure.url.replace("127.0.0.1", "localhost")
        tool.expect(3, "inspect", f"{by_name}/files/parts", holds="localhost", AWS_CA_BUNDLE=authority)
        tool.expect(6, "gather", "parts", "-o", "s3://other/tls.safetensors", holds="set AWS_CA_BUNDLE", **https)
        for source in ("parts", "s3://bucket/parts"):  # From the disk, and copied by the server.
            tool.expect(0, "gather", source, "-o", "s3://other/tls.safetensors", "--force", **https, AWS_CA_BUNDLE=authority)
            tool.expect(0, "diff", "s3://other/tls.safetensors", "whole.safetensors")
        tool.expect(3, "inspect", "s3://bucket/parts", holds="--endpoint-url", AWS_ENDPOINT_URL=served.url.replace("http:", "https:"))


def check_reading_and_writing(tool, bucket):
    bucket.put(tool.work / "parts", "parts")
    tool.expect(0, "diff", "s3://bucket/parts", "whole.safetensors")
    tool.expect(0, "gather", "s3://bucket/parts", "-o", "read.safetensors")
    tool.expect(0, "gather", "parts", "-o", "wanted.safetensors")
    assert (tool.work / "read.safetensors").read_bytes() == (tool.work / "wanted.safetensors").read_bytes()
    tool.expect(0, "gather", "parts", "-o", tool.work / ODD.split("/")[-1], "--checksum", "xxh3")
    tool.expect(0, "gather", "parts", "-o", f"s3://bucket/{ODD}", "--checksum", "xxh3")
    bucket.expect(tool.work / ODD.split("/")[-1], ODD)
    tool.expect(0, "verify", f"s3://bucket/{ODD}")


def check_codes(tool, bucket):
    """Conditions and refusals, by a server that knows them."""
    small = ("convert", "ckpt", "-o", "s3://bucket/out", "--to", "dcp", "--ranks", "1")
    tool.expect(3, "inspect", "s3://bucket/parts", AWS_SECRET_ACCESS_KEY="wrong", holds="SignatureDoesNotMatch")
    tool.expect(3, "inspect", "s3://bucket/parts", AWS_ACCESS_KEY_ID="wrong", holds="AWS_ACCESS_KEY_ID")
    tool.expect(3, "inspect", "s3://bucket/parts", "--anonymous", holds="drop --anonymous")
    tool.expect(3, "inspect", "s3://bucket/absent", holds="no such file or folder")
    tool.expect(6, *small, AWS_SECRET_ACCESS_KEY="wrong", holds="SignatureDoesNotMatch")
    tool.expect(0, *small)
    tool.expect(5, *small, holds=("already exists", "--force"))
    tool.expect(0, *small, "--force", holds=".metadata is removed first")
    tool.expect(0, *small[:-1], "2", "--force")
    assert "out/__1_0.distcp" in bucket.keys("out/"), bucket.keys("out/")
    tool.expect(0, *small, "--force")
    tool.expect(0, "reshard", "ckpt", "-o", "out", "--ranks", "1")
    bucket.expect(tool.work / "out", "out")
    bucket.s3.put_object(Bucket="bucket", Key="locked.pt.shardctl", Body=b"another")
    tool.expect(5, "gather", "ckpt", "-o", "s3://bucket/locked.pt", holds="another run is writing there")
    tool.expect(0, "gather", "ckpt", "-o", "s3://bucket/locked.pt", "--force")
    bucket.expect_clean()


def check_race(tool, bucket):
    """Three runs have one destination. One writes it, and the others end with exit code 5."""
    command = ("split", "whole.safetensors", "--shards", "2", "-o", "s3://other/race")
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        codes = sorted(done.returncode for done in pool.map(lambda _: tool.run(*command), range(3)))
    assert codes == [0, 5, 5], codes
    tool.expect(0, "split", "whole.safetensors", "--shards", "2", "-o", "race")
    bucket.expect(tool.work / "race", "race")


def check_kills(tool, bucket):
    """A killed run leaves no checkpoint, and --resume completes it."""
    command = ("split", "whole.safetensors", "--shards", "2", "-o", "s3://bucket/killed")
    tool.expect(0, "split", "whole.safetensors", "--shards", "2", "-o", "killed")
    seconds = max(0.05, tool.expect(0, *command).seconds)
    for attempt in range(12):
        tool.expect(0, *command, "--force")
        for key in bucket.keys("killed/"):
            bucket.s3.delete_object(Bucket=bucket.name, Key=key)
        process = subprocess.Popen([client.SHARDCTL, *command], cwd=tool.work, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                                   env={"PATH": os.environ["PATH"], "HOME": str(tool.work), **tool.variables})
        time.sleep(seconds * random.uniform(0.02, 1))
        process.send_signal(signal.SIGKILL)
        process.wait()
        if any(key.endswith(".index.json") for key in bucket.keys("killed/")):
            tool.expect(0, "verify", "s3://bucket/killed")
            tool.expect(0, "repair", "s3://bucket/killed", "--uploads", "--force")
        else:
            tool.expect(0, *command, "--resume")
        bucket.expect(tool.work / "killed", "killed")
        bucket.expect_clean()


def check_other_judges(tool, served, bucket):
    """s5cmd and awscli read an object that was written in parts, and write one that is read."""
    variables = {**os.environ, **tool.variables, "AWS_REGION": "us-east-1", "S3_ENDPOINT_URL": served.url}
    aws = shutil.which("aws", path="/usr/bin:/usr/local/bin")
    judges = [[real_servers.S5CMD, "cp"]] + ([[aws, "s3", "cp", "--quiet"]] if aws else [])
    for number, judge in enumerate(judges):
        local, there = tool.work / f"judged{number}.safetensors", f"s3://bucket/judged{number}.safetensors"
        subprocess.run([*judge, f"s3://bucket/{ODD}", local], check=True, env=variables, stdout=subprocess.DEVNULL)
        assert local.read_bytes() == (tool.work / "wanted.safetensors").read_bytes(), judge
        subprocess.run([*judge, local, there], check=True, env=variables, stdout=subprocess.DEVNULL)
        tool.expect(0, "diff", there, "whole.safetensors")


def check_moto(tool, folder):
    with real_servers.moto(folder / "moto") as served:
        tool.serve(served)
        make_files(tool)
        bucket = Bucket(served)
        check_reading_and_writing(tool, bucket)
        tool.expect(0, "gather", "s3://bucket/parts", "-o", "s3://bucket/merged.safetensors")
        bucket.expect(tool.work / "wanted.safetensors", "merged.safetensors")
        bucket.expect_clean()
        # Credentials of the machine, and of a role by a web identity.
        keyless = {"AWS_ACCESS_KEY_ID": None, "AWS_SECRET_ACCESS_KEY": None, "AWS_EC2_METADATA_DISABLED": None}
        tool.expect(0, "inspect", "s3://bucket/parts", **keyless, AWS_EC2_METADATA_SERVICE_ENDPOINT=served.url)
        (tool.work / "token").write_text("web-token")
        tool.expect(0, "inspect", "s3://bucket/parts", **{**keyless, "AWS_EC2_METADATA_DISABLED": "true"},
                    AWS_WEB_IDENTITY_TOKEN_FILE=str(tool.work / "token"), AWS_ENDPOINT_URL_STS=served.url,
                    AWS_ROLE_ARN="arn:aws:iam::123456789012:role/test")


def check_proxy(tool, folder):
    """A real proxy for https://, with the names of AWS's own hosts: buckets in the host's name, and the token service."""
    with real_servers.moto_proxy(folder / "proxy") as proxy:
        tool.serve(proxy)
        make_files(tool)
        bucket = Bucket(None, proxy=proxy)
        tool.variables |= {"AWS_ENDPOINT_URL": "", "AWS_CA_BUNDLE": str(proxy.authority), "AWS_REGION": "us-east-1"}
        dead = "http://127.0.0.1:1"
        for name in ("https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"):
            tool.expect(3, "inspect", "s3://bucket/absent", holds="no such file or folder", **{name: proxy.url})
            tool.expect(3, "inspect", "s3://bucket/absent", holds=("cannot reach the server", "127.0.0.1"), **{name: dead})
        tool.variables["HTTPS_PROXY"] = proxy.url
        tool.expect(3, "inspect", "s3://bucket/absent", holds="certificate", AWS_CA_BUNDLE=None)
        bucket.put(tool.work / "parts", "parts")
        tool.expect(0, "diff", "s3://bucket/parts", "whole.safetensors")
        tool.expect(0, "gather", "parts", "-o", "wanted.safetensors")
        for number, source in enumerate(("parts", "s3://bucket/parts")):
            tool.expect(0, "gather", source, "-o", f"s3://bucket/{number}.safetensors")
            bucket.expect(tool.work / "wanted.safetensors", f"{number}.safetensors")
        bucket.expect_clean()
        (tool.work / "token").write_text("web-token")
        keyless = {"AWS_ACCESS_KEY_ID": None, "AWS_SECRET_ACCESS_KEY": None}
        tool.expect(0, "inspect", "s3://bucket/parts", **keyless, AWS_WEB_IDENTITY_TOKEN_FILE=tool.work / "token",
                    AWS_ROLE_ARN="arn:aws:iam::123456789012:role/test")


def check_nginx(tool, folder):
    with real_servers.nginx(folder / "nginx") as served:
        tool.serve(served)
        make_files(tool)
        files = folder / "nginx" / "files"
        shutil.copytree(tool.work / "parts", files / "parts")
        shutil.copytree(tool.work / "ckpt", files / "ckpt")
        shutil.copy(tool.work / "whole.safetensors", files / "with space.safetensors")
        (files / "empty.safetensors").write_bytes(b"")
        for name in ("parts", "ckpt"):
            tool.expect(0, "diff", f"{served.url}/{name}", files / name)
        tool.expect(0, "gather", f"{served.url}/with%20space.safetensors", "-o", "read.safetensors")
        tool.expect(0, "gather", "whole.safetensors", "-o", "wanted.safetensors")
        assert (tool.work / "read.safetensors").read_bytes() == (tool.work / "wanted.safetensors").read_bytes()
        tool.expect(4, "inspect", f"{served.url}/empty.safetensors")
        tool.expect(3, "inspect", f"{served.url}/absent.safetensors", holds="no such file or folder")


class Tool(client.Client):
    """A client whose server starts after it."""

    def __init__(self, work):
        super().__init__(real_servers.Running(""), work)

    def serve(self, served):
        self.served = served
        self.variables |= {"AWS_ENDPOINT_URL": served.url}


def run(check):
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        (folder / "work").mkdir()
        check(Tool(folder / "work"), folder)


def main():
    checks = (check_seaweedfs, check_moto, check_nginx, check_proxy)
    with concurrent.futures.ProcessPoolExecutor(len(checks)) as pool:
        for done in [pool.submit(run, check) for check in checks]:
            done.result()


if __name__ == "__main__":
    main()
