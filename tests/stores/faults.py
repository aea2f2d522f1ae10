"""A server that fails once, or for ever, or answers with something else: the program continues, or ends with the right
code and writes nothing. A hostile server takes no more time and memory than a hostile file may."""
import concurrent.futures
import pathlib
import resource
import shutil
import subprocess
import tempfile
import time

import client
import server
from server import Fault
from client import safetensors_files
from writing import write_safetensors


from machine import is_longer  # noqa: E402

FILE = "GET /bucket/model.safetensors"
LIST = r"GET /bucket\?"
URL = "s3://bucket/model.safetensors"


def check_passing(tool, served):
    """One spoiled answer is repeated; the output is the same."""
    wanted = (pathlib.Path(served.folder) / "s3" / "bucket" / "model.safetensors").read_bytes()
    for kind in ("503", "500", "502", "429", "408", "drop", "reset", "cut", "too_long", "other_range"):
        for match in (LIST, FILE):
            if match == LIST and kind in ("reset", "cut", "too_long", "other_range"):
                continue
            served.reset(Fault(match, kind))
            tool.expect(0, "convert", URL, "-o", "new.safetensors", "--force")
            assert (tool.work / "new.safetensors").read_bytes() == wanted, kind
            assert served.faults[0].times == 0, f"{kind} was not played"
    served.reset(Fault(FILE, "429", value="1"))
    assert tool.expect(0, "inspect", URL).seconds >= 1, "Retry-After was not kept"
    served.reset(Fault(FILE, "cut"), Fault(FILE, "cut"))
    tool.expect(0, "convert", URL, "-o", "new.safetensors", "--force")
    begins = [line.split("=")[-1].split("-")[0] for line in served.log if line.startswith(FILE)]
    assert len(set(begins)) == len(begins), f"a range began again: {served.log}"


def check_lasting(tool, served):
    """A lasting failure ends with the right code, and DST does not appear."""
    for kind, code, words, value in (
            ("503", 3, "HTTP 503 SlowDown", ""), ("500", 3, "HTTP 500 InternalError", ""), ("drop", 3, "cannot reach the server", ""),
            ("403", 3, "the server refuses access", ""), ("403", 3, "clock", "RequestTimeTooSkewed"), ("403", 3, "restore it first", "InvalidObjectState"),
            ("400", 3, "HTTP 400 KMS.DisabledException", "KMS.DisabledException"), ("412", 4, "changed while", ""),
            ("replaced", 4, "changed while", ""), ("other_etag", 4, "changed while", ""), ("other_size", 4, "changed while", ""),
            ("other_range", 4, "a different range", ""), ("no_ranges", 8, "does not support ranges", ""), ("cut", 3, "", ""),
            ("redirect", 3, "never redirected", "http://127.0.0.1:1/x"), ("headers", 3, "cannot read from the server", ""),
            ("gzip", 8, "does not support ranges", ""), ("416", 4, "changed while", ""), ("short_length", 4, "with Content-Length", "")):
        served.reset(Fault(FILE, kind, times=10**6, value=value))
        tool.expect(code, "convert", URL, "-o", "absent.safetensors", holds=words)
        assert not (tool.work / "absent.safetensors").exists(), kind
    for kind, words in (("other_range", "a different range"), ("encoded", "and Content-Encoding gzip")):
        served.reset(Fault("GET /web/", kind, times=10**6))
        tool.expect(4, "convert", served.url + "/web/model.safetensors", "-o", "absent.safetensors", holds=words)
    assert not list(tool.work.glob(".absent*")), "something was left behind"


def check_streams(tool, served):
    """Bytes are written to a file while they arrive. After an answer that broke off, the next request asks for the rest. A lasting
    failure names the tensor and leaves no file."""
    bucket, target = pathlib.Path(served.folder) / "s3" / "bucket", "GET /bucket/long.safetensors"
    write_safetensors(bucket / "long.safetensors", {"a": 9 << 20, "small": 1000, "b": 8 << 20})
    tool.expect(0, "convert", bucket / "long.safetensors", "-o", "wanted.safetensors")
    wanted = (tool.work / "wanted.safetensors").read_bytes()
    command = ("convert", "s3://bucket/long.safetensors", "-o", "long.safetensors", "--connections", 2)
    served.reset()
    tool.expect(0, *command)
    ranges = [line.split("=")[-1].split("-") for line in served.log if line.startswith(target)]
    assert sum(int(end) - int(begin) > 1 << 20 for begin, end in ranges) == 3, ranges
    for kind in ("503", "drop", "reset", "cut", "too_long", "other_range"):
        served.reset(Fault(target, kind, times=2, after=2))
        tool.expect(0, *command, "--force")
        assert (tool.work / "long.safetensors").read_bytes() == wanted, kind
        begins = [line.split("=")[-1].split("-")[0] for line in served.log if line.startswith(target)]
        assert kind not in ("cut", "reset") or len(set(begins)) == len(begins), f"a range began again: {served.log}"
    for kind, code, words in (("503", 3, "HTTP 503"), ("403", 3, "refuses access"), ("replaced", 4, "changed while"), ("other_range", 4, "a different range"),
                              ("cut", 3, "tensor")):
        served.reset(Fault(target, kind, times=10**6, after=2))
        tool.expect(code, *command[:3], "absent.safetensors", holds=words)
        assert not list(tool.work.glob("*absent*")), kind


def check_every_request(tool, served):
    """Each request fails once, for good: exit 3 or 4, nothing written; or the request was not needed."""
    served.reset()
    tool.expect(0, "gather", "s3://bucket/ckpt", "-o", "whole/x.pt")
    requests = len(served.log)
    assert requests >= 3
    for after in range(requests):
        served.reset(Fault("GET", "403", times=10**6, after=after))
        done = tool.run("gather", "s3://bucket/ckpt", "-o", "broken.pt")
        assert done.returncode == 3, (after, done)
        assert not (tool.work / "broken.pt").exists()
        served.reset(Fault("GET", "drop", after=after))
        tool.expect(0, "gather", "s3://bucket/ckpt", "-o", "kept/x.pt", "--force")
        assert (tool.work / "kept" / "x.pt").read_bytes() == (tool.work / "whole" / "x.pt").read_bytes(), after


def check_replaced(tool, served):
    """An object that is replaced between two requests is noticed, also if size and time remain."""
    bucket = pathlib.Path(served.folder) / "s3" / "bucket"
    shutil.copy(bucket / "model.safetensors", bucket / "big.safetensors")
    served.reset(Fault("GET /bucket/big", "replaced", times=10**6))
    tool.expect(4, "digest", "s3://bucket/big.safetensors", holds="changed while")
    safetensors_files.write(pathlib.Path(served.folder) / "web" / "long.safetensors", {"w": ("U8", [300000])})
    for hides_etags in (False, True):
        served.hides_etags = hides_etags
        served.reset()
        tool.expect(0, "digest", served.url + "/web/long.safetensors")
        served.reset(Fault("GET /web/long", "replaced", times=10**6, after=1))
        tool.expect(4, "digest", served.url + "/web/long.safetensors", holds="changed while")


def check_region(tool, served):
    served.reset(Fault(LIST, "region", value="eu-south-1"))
    tool.expect(0, "inspect", URL)
    assert any("eu-south-1" in text for _, text in served.authorizations), served.authorizations
    served.reset(Fault(LIST, "region", times=9, value="eu-south-1"))
    tool.expect(3, "inspect", URL, "--region", "us-east-1", holds="--region eu-south-1")


def limited():
    resource.setrlimit(resource.RLIMIT_CPU, (40, 40))  # The judgement is by is_longer.
    resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))


def check_hostile(tool, served):
    """5 s of processor time and 512 MiB, as for hostile files."""
    entry = "<Contents><Key>{}</Key><Size>{}</Size><ETag>e</ETag></Contents>"
    page = "<ListBucketResult>{}</ListBucketResult>".format
    more = "<IsTruncated>true</IsTruncated><NextContinuationToken>t</NextContinuationToken>"
    bomb = ('<!DOCTYPE l [<!ENTITY a "' + "x" * 100 + '"><!ENTITY b "' + "&a;" * 1000 + '"><!ENTITY c "' + "&b;" * 1000 + '">]>')
    bodies = ["", "<", page("<Contents>"), page(entry.format("../../etc/passwd", 5)), page(entry.format("model.safetensors", -1)),
              page(entry.format("model.safetensors", 2**63 - 1)), page(entry.format("model.safetensors", 2**63)), page(more),
              page(entry.format("a", 1) + more), bomb + page(entry.format("&c;", 1)), "<a>" * 2_000_000, "x" * (9 << 20)]
    for body in bodies:
        for match in (LIST, FILE):
            served.reset(Fault(match, "body", times=10**6, value=body))
            expect_bounded(tool, "verify", URL)
    endless = page("<IsTruncated>true</IsTruncated><NextContinuationToken>$N</NextContinuationToken>{}")
    for entries in ("", entry.format("model.safetensors.$N", 1)):
        served.reset(Fault(LIST, "body", times=10**6, value=endless.format(entries)))
        expect_bounded(tool, "inspect", URL)
    for kind in ("endless", "headers", "gzip", "slow"):
        for match in (LIST, FILE):
            served.reset(Fault(match, kind, times=10**6))
            expect_bounded(tool, "inspect", URL)
    for body in ("[" * 2_000_000, "[" + "{}," * 500_000 + "{}]", '[{"type": "file", "path": "../x", "size": 1}]',
                 '[{"type": "file", "path": "model.safetensors", "size": 9223372036854775808}]', '{"sha": "x"}', ""):
        served.reset(Fault("GET /api/models", "body", times=10**6, value=body))
        expect_bounded(tool, "inspect", "hf://org/model")
    served.reset(Fault("GET /api/models/.*/tree", "endless", times=10**6))
    expect_bounded(tool, "inspect", "hf://org/model")
    served.reset(Fault("GET /web/parts", "body", times=10**6, value='{"weight_map": {"w": "../../etc/passwd", "v": 1}}'))
    expect_bounded(tool, "inspect", served.url + "/web/parts")
    served.reset(Fault("GET /bucket/model", "redirect", times=10**6, value="http://169.254.169.254/latest/meta-data"))
    expect_bounded(tool, "inspect", URL)
    served.reset(Fault("GET /web", "redirect", times=10**6))
    tool.expect(3, "inspect", served.url + "/web/model.safetensors", holds="redirects too often")
    served.reset(Fault("GET /web", "redirect", times=10**6, value="file:///etc/passwd"))
    tool.expect(3, "inspect", served.url + "/web/model.safetensors", holds="it leaves HTTP")


def check_hostile_uploads(tool, served):
    """The same of a server to which something is written: exit 6, or 3 and 4 for a list of uploads, and nothing endless."""
    upload = "<Upload><Key>x</Key><UploadId>$N</UploadId></Upload>"
    more = "<IsTruncated>true</IsTruncated><NextKeyMarker>$N</NextKeyMarker>"
    part = "<Part><PartNumber>1</PartNumber><Size>5</Size><ETag>e</ETag></Part>"
    listing = [Fault("uploads", "body", times=10**6, value=f"<R>{upload}</R>")]
    for faults in ([Fault("uploads", "body", times=10**6, value=f"<R>{more}{upload}</R>")],
                   [*listing, Fault("uploadId", "body", value=f"<R>{more}{part}</R>"), Fault("uploadId", "body", times=10**6, value=f"<R>{more}</R>")],
                   [*listing, Fault("uploadId", "endless", times=10**6)], [Fault("uploads", "endless", times=10**6)]):
        served.reset(*faults)
        assert expect_bounded(tool, "repair", "s3://bucket/x", "--uploads", codes=(3, 4)).stdout == ""
    write_safetensors(tool.work / "uploaded.safetensors", {"w": 2 << 20})
    for number, match in enumerate(("PUT", "POST.*uploads", "POST.*uploadId")):
        for kind in ("endless", "headers", "gzip", "body"):
            served.reset(Fault(match, kind, times=10**6))
            expect_bounded(tool, "convert", "uploaded.safetensors", "-o", f"s3://bucket/{number}{kind}.safetensors", codes=(6,))


def check_two_meanings(tool, served):
    entry = "<Contents><Key>model.safetensors</Key><Size>9</Size><ETag>e</ETag></Contents>"
    folder = "<CommonPrefixes><Prefix>model.safetensors/</Prefix></CommonPrefixes>"
    served.reset(Fault(LIST, "body", times=10**6, value=f"<ListBucketResult>{entry}{folder}</ListBucketResult>"))
    tool.expect(4, "inspect", URL, holds="cannot use the server's files: one is both a file and a folder")


def expect_bounded(tool, *arguments, codes=(0, 3, 4, 8)):
    begin = resource.getrusage(resource.RUSAGE_CHILDREN)
    started = time.monotonic()
    done = subprocess.run([client.SHARDCTL, *arguments], cwd=tool.work, capture_output=True, text=True, preexec_fn=limited,
                          env={"PATH": "/usr/bin:/bin", "HOME": str(tool.work), **tool.variables})
    seconds = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - begin.ru_utime
    assert done.returncode in codes, (arguments, tool.served.faults[0].kind, tool.served.faults[0].value[:80], done)
    assert not is_longer(seconds, 5) and not is_longer(time.monotonic() - started, 30, time.monotonic), (arguments, seconds)
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss < 512 << 10, "too much memory"
    return done


def run(check):
    """Runs one check with a server of its own."""
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        bucket = folder / "s3" / "bucket"
        shutil.copytree(client.DATA / "demo" / "ckpt", bucket / "ckpt")
        work = folder / "work"
        for each in (folder / "web", work, work / "whole", work / "kept"):
            each.mkdir()
        with server.Server(folder) as served:
            tool = client.Client(served, work)
            tool.expect(0, "gather", bucket / "ckpt", "-o", bucket / "model.safetensors", "--objects", "drop")
            shutil.copy(bucket / "model.safetensors", folder / "web" / "model.safetensors")
            shutil.copytree(folder / "web", folder / "hub" / "org" / "model")
            check(tool, served)


def main():
    # They wait more than they compute, so all run at one time.
    checks = (check_passing, check_lasting, check_streams, check_every_request, check_region, check_two_meanings, check_hostile, check_hostile_uploads, check_replaced)
    with concurrent.futures.ProcessPoolExecutor(len(checks)) as pool:
        for done in [pool.submit(run, check) for check in checks]:
            done.result()


if __name__ == "__main__":
    main()
