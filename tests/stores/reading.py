"""Every verb reads URLs as it reads local paths, with few requests. Prints the requests of each verb."""
import pathlib
import shutil
import tempfile

import client
import server


def make_files(folder):
    """The demo's checkpoint as s3/bucket/ckpt, with other forms of it beside it and on the web and the hub."""
    bucket = folder / "s3" / "bucket"
    shutil.copytree(client.DATA / "demo" / "ckpt", bucket / "ckpt")
    (folder / "s3" / "public").mkdir()
    (folder / "s3" / "empty").mkdir()
    shutil.copytree(bucket / "ckpt", folder / "s3" / "public" / "ckpt")
    shutil.copytree(bucket / "ckpt", folder / "web" / "ckpt")
    return bucket


def expect_same(tool, url, local):
    tool.expect(0, "diff", url, local)
    assert tool.expect(0, "digest", url).stdout == tool.expect(0, "digest", local).stdout


def check_verbs(tool, bucket, folder):
    """All verbs, on a DCP folder and on files made from it."""
    local = bucket / "ckpt"
    tool.expect(0, "gather", local, "-o", "model.safetensors", "--include", "model.**", "--objects", "drop")
    tool.expect(0, "gather", local, "-o", "parts", "--max-shard-size", "1KB", "--objects", "drop")
    tool.expect(0, "gather", local, "-o", "train.pt")
    for name in ("model.safetensors", "train.pt"):
        shutil.copy(tool.work / name, bucket / name)
    shutil.copytree(tool.work / "parts", bucket / "parts")
    shutil.copytree(tool.work / "parts", folder / "web" / "parts")
    shutil.copytree(tool.work / "parts", folder / "hub" / "org" / "model")
    shutil.copytree(tool.work / "parts", folder / "hub" / "gated" / "model")
    shutil.copy(tool.work / "model.safetensors", folder / "web" / "model.safetensors")
    for name in ("ckpt", "model.safetensors", "train.pt", "parts"):
        expect_same(tool, f"s3://bucket/{name}", bucket / name)
        tool.expect(0, "verify", f"s3://bucket/{name}")
    tool.expect(0, "gather", "s3://bucket/ckpt/", "-o", "again.safetensors", "--include", "model.**", "--objects", "drop")
    assert (tool.work / "again.safetensors").read_bytes() == (tool.work / "model.safetensors").read_bytes()
    tool.expect(0, "reshard", "s3://bucket/ckpt", "-o", "two", "--ranks", "2", "--local-ranks", "2")
    expect_same(tool, "s3://bucket/ckpt", tool.work / "two")
    tool.expect(0, "split", "s3://bucket/model.safetensors", "-o", "like", "--like", "s3://bucket/ckpt")
    tool.expect(0, "cat", "s3://bucket/ckpt", "model.norm.weight")
    tool.expect(0, "inspect", "s3://bucket/ckpt", "--json", holds='"shardctl.inspect/')
    tool.expect(0, "gather", "s3://bucket/ckpt", "-o", "checked.pt", "--checksum", "xxh3", "--if-changed")
    tool.expect(0, "gather", "s3://bucket/ckpt", "-o", "checked.pt", "--if-changed", holds="up to date")


def check_web_and_hub(tool, served, folder):
    web = served.url + "/web"
    expect_same(tool, f"{web}/ckpt", folder / "web" / "ckpt")
    expect_same(tool, f"{web}/parts", folder / "web" / "parts")
    expect_same(tool, f"{web}/model.safetensors", folder / "web" / "model.safetensors")
    for url in ("hf://org/model", "hf://org/model@v1", f"hf://org/model@{server.COMMIT}"):
        expect_same(tool, url, folder / "hub" / "org" / "model")
    served.reset()
    tool.expect(3, "inspect", "hf://gated/model", holds=("the server refuses access", "GatedRepo", "HF_TOKEN"))
    tool.expect(0, "inspect", "hf://gated/model", HF_TOKEN=server.TOKEN)
    tokens = [is_elsewhere for is_elsewhere, text in served.authorizations if server.TOKEN in text]
    assert tokens and not any(tokens), "the token left the hub"
    assert any(is_elsewhere for is_elsewhere, _ in served.authorizations), "no redirect was followed"
    (tool.work / "token").write_text(server.TOKEN + "\n")
    tool.expect(0, "inspect", "hf://gated/model", HF_TOKEN_PATH=tool.work / "token")
    tool.expect(3, "inspect", "hf://gated/model", "--anonymous", HF_TOKEN=server.TOKEN)
    tool.expect(3, "inspect", "hf://org/model", HF_HUB_OFFLINE="1", holds="HF_HUB_OFFLINE is set")
    tool.expect(3, "inspect", "hf://org/model@other", holds="the model has no revision 'other'")
    tool.expect(3, "inspect", "hf://org/absent", holds="check the name")
    tool.expect(8, "inspect", "hf://datasets/org/x", holds="only models")
    tool.expect(2, "inspect", "hf://org", holds="hf://ORG/NAME")


def check_requests(tool, served):
    """The requests that each verb sends; the fewest are promised."""
    counts = {}
    for name, most, arguments in (
            ("inspect of a DCP folder", 2, ("inspect", "s3://bucket/ckpt")),
            ("gather of a DCP folder", 6, ("gather", "s3://bucket/ckpt", "-o", "counted.pt", "--force")),
            ("inspect of a safetensors file", 3, ("inspect", "s3://bucket/model.safetensors")),
            ("verify of a DCP folder", 6, ("verify", "s3://bucket/ckpt"))):
        served.reset()
        tool.expect(0, *arguments)
        counts[name] = len(served.log)
        print(f"{name}: {len(served.log)} requests\n  " + "\n  ".join(served.log))
        assert len(served.log) <= most, f"{name}: {len(served.log)} requests, not {most}"
    served.reset()
    tool.expect(0, "inspect", tool.work / "model.safetensors")
    assert not served.log


def check_pages(tool, served):
    served.page = 2
    tool.expect(0, "inspect", "s3://bucket/ckpt")
    tool.expect(0, "inspect", "hf://org/model")
    served.page = 1000


def check_credentials(tool, served):
    none = {"AWS_ACCESS_KEY_ID": None, "AWS_SECRET_ACCESS_KEY": None}
    url = "s3://bucket/ckpt"
    tool.expect(3, "inspect", url, holds=("cannot find credentials", "--anonymous"), **none)
    tool.expect(0, "inspect", "s3://public/ckpt", "--anonymous", **none)
    tool.expect(3, "inspect", url, "--anonymous", holds="drop --anonymous")
    tool.expect(3, "inspect", url, AWS_SECRET_ACCESS_KEY="wrong", holds=("SignatureDoesNotMatch", "AWS_SECRET_ACCESS_KEY"))
    tool.expect(3, "inspect", url, AWS_ACCESS_KEY_ID="wrong", holds="InvalidAccessKeyId")
    tool.expect(3, "inspect", url, AWS_SESSION_TOKEN="expired", holds=("ExpiredToken", "renew the credentials"))
    tool.expect(2, "inspect", url, AWS_ENDPOINT_URL="not an address", holds="AWS_ENDPOINT_URL is not the address")
    tool.expect(0, "inspect", url, "--endpoint-url", served.url, "--region", "eu-west-1", AWS_ENDPOINT_URL="http://127.0.0.1:1")
    tool.expect(0, "inspect", url, AWS_ENDPOINT_URL_S3=served.url, AWS_ENDPOINT_URL="http://127.0.0.1:1")
    folder = tool.work / ".aws"
    folder.mkdir()
    (folder / "credentials").write_text(f"[work]\naws_access_key_id={server.KEY_ID}\naws_secret_access_key={server.SECRET}\n")
    tool.expect(0, "inspect", url, AWS_PROFILE="work", **none)
    (folder / "config").write_text("[profile process]\ncredential_process = printf "
                                   f"'{{\"AccessKeyId\":\"{server.KEY_ID}\",\"SecretAccessKey\":\"{server.SECRET}\"}}'\n")
    tool.expect(0, "inspect", url, AWS_PROFILE="process", **none)
    (tool.work / "web-token").write_text("web-token\n")
    tool.expect(0, "inspect", url, AWS_WEB_IDENTITY_TOKEN_FILE=tool.work / "web-token", AWS_ROLE_ARN="arn:aws:iam::1:role/r",
                AWS_ENDPOINT_URL_STS=served.url, **none)
    tool.expect(0, "inspect", url, AWS_CONTAINER_CREDENTIALS_FULL_URI=served.url + "/role/container",
                AWS_CONTAINER_AUTHORIZATION_TOKEN="container-token", **none)
    tool.expect(0, "inspect", url, AWS_EC2_METADATA_DISABLED=None, AWS_EC2_METADATA_SERVICE_ENDPOINT=served.url, **none)
    gs = "gs://bucket/ckpt"
    tool.expect(0, "inspect", gs, "--endpoint-url", served.url, GS_ACCESS_KEY_ID=server.KEY_ID, GS_SECRET_ACCESS_KEY=server.SECRET)
    served.reset()
    tool.expect(3, "inspect", gs, "--endpoint-url", served.url, GOOGLE_OAUTH_ACCESS_TOKEN="google-token")
    assert served.authorizations[0][1] == "Bearer google-token"


def check_refusals(tool, served):
    tool.expect(3, "inspect", "s3://absent/ckpt", holds="there is no such bucket")
    tool.expect(3, "inspect", "s3://bucket/absent", holds="no such file or folder")
    tool.expect(3, "inspect", "s3://bucket/absent.safetensors", holds="no such file or folder")
    tool.expect(3, "inspect", served.url + "/web/absent.safetensors", holds="no such file or folder")
    tool.expect(4, "inspect", "s3://empty", holds="is not a checkpoint")
    tool.expect(2, "inspect", "s3://b_%/x", holds="does not name a bucket")
    tool.expect(2, "inspect", "https://user:pw@host/x", holds="a user or a password")
    tool.expect(8, "inspect", "ftp://host/x", holds="cannot read ftp://")
    tool.expect(8, "inspect", "http://example.org/x", holds="use https://")
    for target in ("s3://bucket/new", "gs://bucket/new", "hf://org/new"):
        scheme = target.split(":", maxsplit=1)[0]
        tool.expect(8, "gather", "s3://bucket/ckpt", "-o", target, holds=f"writing to {scheme}:// is not supported")


def main():
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        bucket = make_files(folder)
        work = folder / "work"
        work.mkdir()
        with server.Server(folder) as served:
            tool = client.Client(served, work)
            check_verbs(tool, bucket, folder)
            check_web_and_hub(tool, served, folder)
            check_requests(tool, served)
            check_pages(tool, served)
            check_credentials(tool, served)
            check_refusals(tool, served)


if __name__ == "__main__":
    main()
