"""Every verb reads URLs as it reads local paths, with few requests. Prints the requests of each verb."""
import gzip
import json
import pathlib
import shutil
import tempfile

import client
import server
from client import safetensors_files


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
    shutil.copytree(folder / "web" / "parts", folder / "web" / "with a space")
    expect_same(tool, f"{web}/with%20a%20space", folder / "web" / "parts")
    shutil.copytree(folder / "web" / "ckpt", folder / "web" / "step=1.ckpt")
    expect_same(tool, f"{web}/step=1.ckpt/", folder / "web" / "ckpt")
    tool.expect(3, "inspect", f"{web}/absent.ckpt", holds="no such file or folder")
    (folder / "web" / "packed.gz").write_bytes(gzip.compress(b"x"))
    tool.expect(8, "inspect", f"{web}/packed.gz", holds="download the file and unpack it")
    for url in ("hf://org/model", "hf://org/model@v1", f"hf://org/model@{server.COMMIT}", "hf://old/model",
                "hf://org/model@refs/pr/1", "hf://org/model@refs%2Fpr%2F1"):
        expect_same(tool, url, folder / "hub" / "org" / "model")
    tool.expect(0, "inspect", "hf://org/model", HF_ENDPOINT=served.url + server.BASE + "/")
    served.reset()
    tool.expect(3, "inspect", "hf://gated/model", holds=("the server refuses access", "GatedRepo", "HF_TOKEN"))
    tool.expect(0, "inspect", "hf://gated/model", HF_TOKEN=server.TOKEN)
    tokens = [is_elsewhere for is_elsewhere, text in served.authorizations if server.TOKEN in text]
    assert tokens and not any(tokens), "the token left the hub"
    assert any(is_elsewhere for is_elsewhere, _ in served.authorizations), "no redirect was followed"
    check_hub_tokens(tool)
    tool.expect(3, "inspect", "hf://org/model", HF_HUB_OFFLINE="1", holds="HF_HUB_OFFLINE is set")
    first = min((folder / "hub" / "org" / "model").glob("*.safetensors"))
    expect_same(tool, f"hf://org/model@refs/pr/1/{first.name}", first)
    tool.expect(3, "inspect", "hf://org/model@other", holds="the model has no revision 'other'")
    tool.expect(3, "inspect", "hf://org/absent", holds="check the name")
    tool.expect(8, "inspect", "hf://datasets/org/x", holds="only models")
    tool.expect(2, "inspect", "hf://org", holds="hf://ORG/NAME")


def check_requests(tool, served, bucket):
    """The requests that each verb sends; the fewest are promised."""
    tool.expect(0, "reshard", "s3://bucket/ckpt", "-o", bucket / "r64", "--ranks", "64")
    for name, most, arguments in (
            ("inspect of a DCP folder of 64 ranks", 3, ("inspect", "s3://bucket/r64")),
            ("inspect of a DCP folder with objects in two files", 4, ("inspect", "s3://bucket/ckpt")),
            ("gather of a DCP folder", 6, ("gather", "s3://bucket/ckpt", "-o", "counted.pt", "--force")),
            ("inspect of a safetensors file", 2, ("inspect", "s3://bucket/model.safetensors")),
            ("verify of a DCP folder", 6, ("verify", "s3://bucket/ckpt"))):
        served.reset()
        tool.expect(0, *arguments)
        print(f"{name}: {len(served.log)} requests\n  " + "\n  ".join(served.log))
        assert len(served.log) <= most, f"{name}: {len(served.log)} requests, not {most}"
    served.reset()
    tool.expect(0, "inspect", tool.work / "model.safetensors")
    assert not served.log
    check_round_trips(tool, served, bucket)


def check_round_trips(tool, served, bucket):
    """The headers of many large files, and many small tensors, take few requests and round trips."""
    tensors = {}
    for i in range(160):
        name = f"model-{i + 1:05}-of-00160.safetensors"
        write_safetensors(bucket / "many" / name, {f"layers.{i}.w": 2 << 20})
        tensors[f"layers.{i}.w"] = name
    (bucket / "many" / "model.safetensors.index.json").write_text(json.dumps({"weight_map": tensors}))
    write_safetensors(tool.work / "small.safetensors", {f"layers.{i}.w": 256 for i in range(300)})
    tool.expect(0, "reshard", "small.safetensors", "-o", bucket / "small", "--ranks", "4", "--to", "dcp")
    served.latency = 0.1
    for name, most, most_trips, arguments in (
            ("inspect of 160 files", 162, 16, ("inspect", "s3://bucket/many")),  # 5 unless the machine is busy.
            ("gather of 300 small tensors", 6, 6, ("gather", "s3://bucket/small", "-o", "gathered.safetensors"))):
        served.reset()
        seconds = tool.expect(0, *arguments).seconds
        print(f"{name}: {len(served.log)} requests, {served.round_trips()} round trips, {seconds:.2f} s")
        assert len(served.log) <= most and served.round_trips() <= most_trips, name
    served.latency = 0.0


def write_safetensors(path, sizes):
    """A file of tensors with so many bytes, which are holes."""
    path.parent.mkdir(exist_ok=True)
    safetensors_files.write(path, {name: ("U8", [size]) for name, size in sizes.items()})


def check_names(tool):
    """Names in a store are taken as written. No message speaks of files of a disk."""
    done = tool.expect(3, "inspect", "s3://bucket//ckpt", holds=("no such file or folder", "'//' is a part of names"))
    assert "symlink" not in done.stderr, done.stderr
    done = tool.expect(3, "inspect", "s3://bucket/in//model.safetensors", holds="'//' is a part of names")
    assert "symlink" not in done.stderr, done.stderr


def check_unlisted(tool, bucket):
    """Objects of a bucket are read by those who may not list it, and a folder is known by its index, as on the web."""
    for name, options in (("unlisted", ()), ("public-unlisted", ("--anonymous",))):
        shutil.copytree(bucket / "parts", bucket.parent / name / "in" / "parts")
        shutil.copytree(bucket / "ckpt", bucket.parent / name / "ckpt")
        shutil.copy(bucket / "model.safetensors", bucket.parent / name / "model.safetensors")
        for key in ("model.safetensors", "in/parts", "ckpt"):
            digest = tool.expect(0, "digest", f"s3://{name}/{key}", *options).stdout
            assert digest == tool.expect(0, "digest", bucket / pathlib.Path(key).name).stdout
            tool.expect(0, "verify", f"s3://{name}/{key}", *options)
        for key in ("absent", "in/absent", "in/parts/absent.safetensors"):
            tool.expect(3, "inspect", f"s3://{name}/{key}", *options, holds=("the server refuses access", "AccessDenied"))


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
    tool.expect(0, "inspect", url, AWS_ENDPOINT_URL=served.url + server.BASE)
    tool.expect(0, "gather", url, "-o", "s3://bucket/below.pt", AWS_ENDPOINT_URL=served.url + server.BASE)
    tool.expect(8, "inspect", "s3://b--use1-az4--x-s3/x", AWS_ENDPOINT_URL=None, holds="directory buckets")
    tool.expect(2, "inspect", "s3://arn:aws:s3:us-west-2:1:accesspoint/x", holds="-s3alias")
    for region, host in (("cn-north-1", "bucket.s3.cn-north-1.amazonaws.com.cn"), ("eusc-de-east-1", "bucket.s3.eusc-de-east-1.amazonaws.eu")):
        served.reset()
        tool.run("inspect", url, "--region", region, AWS_ENDPOINT_URL=None, HTTPS_PROXY=served.url)
        assert served.log[0] == f"CONNECT {host}:443", served.log
    check_profiles(tool, served)
    tool.expect(0, "inspect", url, AWS_CONTAINER_CREDENTIALS_FULL_URI=served.url + "/role/container",
                AWS_CONTAINER_AUTHORIZATION_TOKEN="container-token", **none)
    served.tokens = ["expired"]  # Refused credentials are asked for again, once.
    tool.expect(0, "inspect", url, AWS_CONTAINER_CREDENTIALS_FULL_URI=served.url + "/role/container",
                AWS_CONTAINER_AUTHORIZATION_TOKEN="container-token", **none)
    assert not served.tokens
    served.tokens = ["expired"] * 9
    tool.expect(3, "inspect", url, AWS_CONTAINER_CREDENTIALS_FULL_URI=served.url + "/role/container",
                AWS_CONTAINER_AUTHORIZATION_TOKEN="container-token", holds="ExpiredToken", **none)
    assert len(served.tokens) == 7, served.tokens
    served.tokens = []
    (tool.work / "container-token").write_text("container-token\n")
    tool.expect(0, "inspect", url, AWS_CONTAINER_CREDENTIALS_FULL_URI=served.url + "/role/container",
                AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE=tool.work / "container-token", **none)
    tool.expect(0, "inspect", url, AWS_EC2_METADATA_DISABLED=None, AWS_EC2_METADATA_SERVICE_ENDPOINT=served.url, **none)
    gs = ("inspect", "gs://bucket/ckpt", "--endpoint-url", served.url)
    tool.expect(0, *gs, GS_ACCESS_KEY_ID=server.KEY_ID, GS_SECRET_ACCESS_KEY=server.SECRET)
    tool.expect(0, *gs, GOOGLE_OAUTH_ACCESS_TOKEN=server.GOOGLE_TOKEN)
    tool.expect(0, *gs, CLOUDSDK_AUTH_ACCESS_TOKEN=server.GOOGLE_TOKEN)
    tool.expect(0, *gs, GCE_METADATA_HOST=served.address)
    tool.expect(3, *gs, GCE_METADATA_HOST="127.0.0.1:1", holds="GOOGLE_OAUTH_ACCESS_TOKEN")
    tool.expect(3, *gs, GCE_METADATA_HOST="127.0.0.1:1", GOOGLE_APPLICATION_CREDENTIALS="key.json",
                holds=("the file of GOOGLE_APPLICATION_CREDENTIALS is not read", "print-access-token"))


def check_renewal(tool, served):
    """Credentials of a service are asked for again 5 minutes before they end, and otherwise once."""
    none = {"AWS_ACCESS_KEY_ID": None, "AWS_SECRET_ACCESS_KEY": None}
    (tool.work / "web-token").write_text("web-token\n")
    container = {"AWS_CONTAINER_CREDENTIALS_FULL_URI": served.url + "/role/container", "AWS_CONTAINER_AUTHORIZATION_TOKEN": "container-token"}
    machine = {"AWS_EC2_METADATA_DISABLED": None, "AWS_EC2_METADATA_SERVICE_ENDPOINT": served.url}
    web = {"AWS_WEB_IDENTITY_TOKEN_FILE": "web-token", "AWS_ROLE_ARN": "arn:aws:iam::1:role/r"}
    google = {"GCE_METADATA_HOST": served.address, "SHARDCTL_ENDPOINT_URL": served.url}
    for scheme, asked, variables in (("s3", "GET /role/container", container), ("s3", "PUT /latest/api/token", machine), ("s3", "POST /", web),
                                     ("gs", "GET /computeMetadata/", google)):
        for seconds in (3600, 200):
            served.lasts_s = seconds
            served.reset()
            tool.expect(0, "digest", f"{scheme}://bucket/ckpt", **variables, **none)
            times = sum(line.startswith(asked) for line in served.log)
            requests = sum("/bucket" in line for line in served.log)
            assert times == (1 if seconds == 3600 else requests) and requests > 1, (asked, seconds, served.log)
    served.lasts_s = 3600


def check_profiles(tool, served):
    """Credentials of files, and of roles that are assumed with them or with the token of a web identity."""
    none = {"AWS_ACCESS_KEY_ID": None, "AWS_SECRET_ACCESS_KEY": None}
    url = "s3://bucket/ckpt"
    folder = tool.work / ".aws"
    folder.mkdir()
    (tool.work / "web-token").write_text("web-token\n")
    (folder / "credentials").write_text(f"[work]\naws_access_key_id={server.KEY_ID}\naws_secret_access_key={server.SECRET}\n")
    tool.expect(0, "inspect", url, AWS_PROFILE="work", **none)
    role = "role_arn = arn:aws:iam::1:role/r"
    (folder / "config").write_text("[profile process]\ncredential_process = printf "
                                   f"'{{\"AccessKeyId\":\"{server.KEY_ID}\",\"SecretAccessKey\":\"{server.SECRET}\"}}'\n"
                                   f"[profile role]\n{role}\nsource_profile = work\nexternal_id = e\n"
                                   f"[profile own]\n{role}\nsource_profile = own\naws_access_key_id={server.KEY_ID}\n"
                                   f"aws_secret_access_key={server.SECRET}\n"
                                   f"[profile container]\n{role}\ncredential_source = EcsContainer\n"
                                   f"[profile machine]\n{role}\ncredential_source = Ec2InstanceMetadata\n"
                                   f"[profile other]\n{role}\ncredential_source = Mars\n"
                                   f"[profile here]\ncredential_process = true\nendpoint_url = {served.url}\n"
                                   "[profile services]\nservices = local\nendpoint_url = http://127.0.0.1:9\n"
                                   f"[services local]\nsts =\n  endpoint_url = http://127.0.0.1:9\ns3 =\n  endpoint_url = {served.url}\n"
                                   "[profile no-services]\nservices = none\n"
                                   f"[profile web]\n{role}\nweb_identity_token_file = {tool.work}/web-token\n")
    for profile in ("process", "role", "web", "own"):
        tool.expect(0, "inspect", url, AWS_PROFILE=profile, **none)
    container = {"AWS_CONTAINER_CREDENTIALS_FULL_URI": served.url + "/role/container", "AWS_CONTAINER_AUTHORIZATION_TOKEN": "container-token"}
    tool.expect(0, "inspect", url, AWS_PROFILE="container", **container, **none)
    tool.expect(3, "inspect", url, AWS_PROFILE="machine", holds=("cannot assume the role", "Ec2InstanceMetadata has no credentials"), **none)
    tool.expect(2, "inspect", url, AWS_PROFILE="other", holds="credential_source 'Mars' is unknown", **none)
    tool.expect(0, "inspect", url, AWS_PROFILE="here", AWS_ENDPOINT_URL=None)  # Keys of the environment, the profile's address.
    tool.expect(0, "inspect", url, AWS_PROFILE="services", AWS_ENDPOINT_URL=None)
    tool.expect(2, "inspect", url, AWS_PROFILE="no-services", AWS_ENDPOINT_URL=None, holds="there is no section [services none]")
    shutil.move(folder, tool.work / "aws")
    tool.expect(2, "inspect", url, AWS_PROFILE="work", holds="there is no profile 'work'", **none)
    tool.expect(0, "inspect", url, AWS_PROFILE="role", AWS_CONFIG_FILE="aws/config", AWS_SHARED_CREDENTIALS_FILE="aws/credentials", **none)
    web = {"AWS_WEB_IDENTITY_TOKEN_FILE": "web-token", "AWS_ROLE_ARN": "arn:aws:iam::1:role/r", **none}
    tool.expect(0, "inspect", url, AWS_ENDPOINT_URL_STS=served.url, **web)
    tool.expect(3, "inspect", url, AWS_ROLE_SESSION_NAME="expired", holds="ExpiredToken", **web)  # The server's token is this name.


def check_hub_tokens(tool):
    """The token is found as the hub's own client finds it."""
    (tool.work / "token").write_text(server.TOKEN + "\n")
    gated = ("inspect", "hf://gated/model")
    tool.expect(0, *gated, HF_TOKEN_PATH=tool.work / "token")
    tool.expect(0, *gated, HF_HOME=tool.work)
    tool.expect(3, *gated, HF_HOME=tool.work, HF_HUB_DISABLE_IMPLICIT_TOKEN="1")
    tool.expect(3, *gated, "--anonymous", HF_TOKEN=server.TOKEN)


def check_certificates(tool, served):
    address, certificate = served.secure()
    url = address + "/web/model.safetensors"
    tool.expect(3, "inspect", url, holds="certificates are from")
    for name in ("AWS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE"):
        tool.expect(0, "inspect", url, **{name: certificate})
    served.reset(server.Fault("GET /web", "redirect", value=served.url + "/web/model.safetensors"))
    tool.expect(3, "inspect", url, AWS_CA_BUNDLE=certificate, holds="it leaves HTTPS")


def check_proxies(tool, served):
    """A proxy sees whole requests of http://, and only the host of https://."""
    far = {"AWS_ENDPOINT_URL": "http://store.invalid", "HF_ENDPOINT": "http://hub.invalid", "http_proxy": served.url}
    served.reset()
    tool.expect(0, "inspect", "s3://bucket/ckpt", **far)
    assert served.log and all(line.startswith("GET http://store.invalid/bucket") for line in served.log), served.log
    tool.expect(3, "inspect", "s3://bucket/ckpt", no_proxy="store.invalid", holds="cannot reach the server", **far)
    served.reset()  # The machine's own service is asked directly.
    tool.expect(0, "inspect", "s3://bucket/ckpt", AWS_ACCESS_KEY_ID=None, AWS_SECRET_ACCESS_KEY=None, AWS_EC2_METADATA_DISABLED=None,
                AWS_EC2_METADATA_SERVICE_ENDPOINT=served.url, **far)
    assert served.log[0] == "PUT /latest/api/token" and served.log[-1].startswith("GET http://store.invalid"), served.log
    served.reset(server.Fault("GET .*/resolve/", "redirect", times=10**6, value="http://169.254.169.254/x"))
    tool.expect(3, "inspect", "hf://org/model", holds="from a public into a private network", **far)
    served.reset(server.Fault("GET http", "407", times=10**6))
    tool.expect(3, "inspect", "hf://org/model", holds=("HTTP 407", "the proxy needs a valid user and password"), **far)
    near = {"https_proxy": served.url, "AWS_ENDPOINT_URL": None, "HF_ENDPOINT": None, "AWS_REGION": "eu-west-1"}
    for url, host in (("s3://bucket/ckpt", "bucket.s3.eu-west-1.amazonaws.com"), ("gs://bucket/ckpt", "storage.googleapis.com"),
                      ("hf://org/model", "huggingface.co")):
        served.reset()
        tool.expect(3, "inspect", url, GOOGLE_OAUTH_ACCESS_TOKEN="t", holds=("cannot reach the server", "the proxy does not connect"), **near)
        assert set(served.log) == {f"CONNECT {host}:443"}, served.log


def check_named_inputs(tool, bucket):
    """Options that name files and folders take URLs."""
    (bucket / "hub").mkdir()
    (bucket / "hub" / "config.json").write_text('{"model_type": "x"}')
    (bucket / "hub" / "tokenizer.json").write_text("{}")
    shutil.copy(bucket / "model.safetensors", bucket / "hub" / "model.safetensors")
    tool.expect(0, "export", "model.safetensors", "-o", "exported", "--hf-ref", "s3://bucket/hub")
    assert (tool.work / "exported" / "tokenizer.json").read_bytes() == b"{}"
    tool.expect(0, "export", "s3://bucket/model.safetensors", "-o", "exported-too", "--hf-ref", bucket / "hub")
    (bucket / "map.json").write_text('{"schema": "shardctl.layout/1", "types": {"x": ".+"}, '
                                     '"rules": [{"logical": "a.{x}", "stored": "model.{x}"}]}')
    tool.expect(0, "inspect", "s3://bucket/model.safetensors", "--map", "s3://bucket/map.json", holds="a.")
    layout = '{"schema": "shardctl.layout/1", "mesh": {"tp": 2}, "rules": [{"match": ".*"}]}'
    (bucket / "layout.json").write_text(layout)
    tool.expect(0, "split", "model.safetensors", "-o", "laid", "--layout", "s3://bucket/layout.json")
    tool.expect(0, "inspect", "s3://bucket/ckpt", "--connections", "1")
    tool.expect(2, "inspect", "s3://bucket/ckpt", "--connections", "0")


def check_refusals(tool, served):
    tool.expect(3, "inspect", "s3://absent/ckpt", holds="there is no such bucket")
    tool.expect(3, "inspect", "s3://bucket/absent", holds="no such file or folder")
    tool.expect(3, "inspect", "s3://bucket/absent.safetensors", holds="no such file or folder")
    tool.expect(3, "inspect", served.url + "/web/absent.safetensors", holds="no such file or folder")
    tool.expect(4, "inspect", "s3://empty", holds="is not a checkpoint")
    tool.expect(2, "inspect", "s3://b_%/x", holds="does not name a bucket")
    tool.expect(2, "inspect", "https://user:pw@host/x", holds="a user or a password")
    tool.expect(8, "inspect", "ftp://host/x", holds="cannot use ftp://")
    tool.expect(8, "inspect", "http://example.org/x", holds="use https://")
    for target in ("https://host/new", "hf://org/new"):
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
            check_named_inputs(tool, bucket)
            check_web_and_hub(tool, served, folder)
            check_requests(tool, served, bucket)
            check_pages(tool, served)
            check_names(tool)
            check_unlisted(tool, bucket)
            check_credentials(tool, served)
            check_renewal(tool, served)
            check_certificates(tool, served)
            check_proxies(tool, served)
            check_refusals(tool, served)


if __name__ == "__main__":
    main()
