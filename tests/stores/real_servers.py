"""Real servers on the loopback: SeaweedFS and moto speak S3, nginx serves files of the web.

SHARD_STORE_SERVERS is the folder of their packages, from scripts/setup clients. All have the key of server.py. Nothing
outside of this machine is asked.
"""
import contextlib
import json
import os
import pathlib
import random
import shutil
import socket
import subprocess
import sys
import time

import server

PACKAGES = pathlib.Path(os.environ["SHARD_STORE_SERVERS"])
S5CMD = PACKAGES / "s5cmd" / "bin" / "s5cmd"
GRPC = 10000  # The distance of SeaweedFS's second ports.
sys.path.insert(1, str(PACKAGES))


class Running:
    """A server that answers at `url`."""

    def __init__(self, url):
        self.url, self.log = url, []  # Client prints the log of server.py.


def free_ports(count, distance=0):
    """Ports that are free, as are those `distance` above them. They are below the ports that the system gives."""
    found = []
    while len(found) < count:
        port = random.randrange(11000, 20000)
        with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
            for each in {port, port + distance}:
                stack.enter_context(socket.create_server(("127.0.0.1", each)))
            if port not in found:
                found.append(port)
    return found


@contextlib.contextmanager
def running(folder, port, command, variables=None, seconds=60):
    """Runs a server until the block ends. It is ready when it answers any HTTP request."""
    log = folder / "log"
    with open(log, "wb") as out:
        process = subprocess.Popen([str(each) for each in command], stdout=out, stderr=out, stdin=subprocess.DEVNULL, cwd=folder,
                                   env={"PATH": os.environ["PATH"], "HOME": str(folder), **(variables or {})})
    try:
        end = time.monotonic() + seconds
        while not answers(port):
            assert process.poll() is None and time.monotonic() < end, f"{command} does not start:\n{log.read_text()[-4000:]}"
            time.sleep(0.05)
        yield Running(f"http://127.0.0.1:{port}")
    finally:
        process.kill()
        process.wait()


def answers(port):
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=2) as connection:
            connection.sendall(b"GET / HTTP/1.0\r\nHost: 127.0.0.1\r\n\r\n")
            return connection.recv(5) == b"HTTP/"
    except OSError:
        return False


@contextlib.contextmanager
def seaweedfs(folder):
    """Checks signatures, conditions and the parts of uploads. A request of `vacuum` frees the bytes of removed objects."""
    folder.mkdir()
    (folder / "data").mkdir()
    keys = [{"accessKey": server.KEY_ID, "secretKey": server.SECRET}]
    identity = {"name": "test", "credentials": keys, "actions": ["Admin", "Read", "Write", "List"]}
    (folder / "identities.json").write_text(json.dumps({"identities": [identity]}))
    s3, master, volume, filer, admin = free_ports(5, GRPC)
    options = {"dir": folder / "data", "ip": "127.0.0.1", "ip.bind": "127.0.0.1", "s3.config": folder / "identities.json", "s3.port": s3,
               "master.port": master, "volume.port": volume, "filer.port": filer, "admin.port": admin, "master.telemetry": "false",
               "webdav": "false", "admin.ui": "false", "s3.port.iceberg": 0, "s3.port.lance": 0}
    command = [PACKAGES / "bin" / "weed", "mini", *(f"-{name}={value}" for name, value in options.items())]
    with running(folder, s3, command) as started:
        started.vacuum = f"http://127.0.0.1:{master}/vol/vacuum?garbageThreshold=0.001"
        yield started


@contextlib.contextmanager
def moto(folder):
    """Also gives credentials, as a machine's metadata service and as the token service. It checks no signatures."""
    folder.mkdir()
    [port] = free_ports(1)
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", port]
    with running(folder, port, command, {"PYTHONPATH": str(PACKAGES)}) as started:
        yield started


@contextlib.contextmanager
def moto_proxy(folder):
    """A proxy for https:// behind which moto answers for all hosts of AWS. `authority` is the file of its certificate."""
    folder.mkdir()
    [port] = free_ports(1)
    package = PACKAGES / "moto" / "moto_proxy"
    (folder / "certs").mkdir()
    shutil.copy(package / "certs" / "req.conf.tmpl", folder / "certs")
    start = ("import sys; from moto.moto_proxy.certificate_creator import CertificateCreator as made; "
             "made.certdir = sys.argv.pop(1); from moto.proxy import main; main()")
    command = [sys.executable, "-c", start, folder / "certs", "-H", "127.0.0.1", "-p", port]
    with running(folder, port, command, {"PYTHONPATH": str(PACKAGES)}) as started:
        started.authority = package / "ca.crt"
        yield started


def make_authority(folder, name, *names):
    """A self-made authority, and a server's certificate from it. Returns the files: authority, certificate, key."""
    authority, authority_key, request, certificate, key, extension = (
        folder / f"{name}{end}" for end in (".pem", ".key", ".csr", "-server.pem", "-server.key", ".ext"))
    new = ["openssl", "req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    extension.write_text("subjectAltName=" + ",".join(names))
    for command in ([*new, "-x509", "-days", "2", "-subj", f"/CN={name}", "-keyout", authority_key, "-out", authority],
                    [*new, "-subj", "/CN=server", "-keyout", key, "-out", request],
                    ["openssl", "x509", "-req", "-days", "2", "-in", request, "-CA", authority, "-CAkey", authority_key, "-set_serial", "1",
                     "-extfile", extension, "-out", certificate]):
        subprocess.run(list(map(str, command)), check=True, capture_output=True)
    return authority, certificate, key


ECHO = pathlib.Path("/usr/lib/nginx/modules/ngx_http_echo_module.so")  # Debian's libnginx-mod-http-echo, with its own nginx.


@contextlib.contextmanager
def nginx(folder, wait_s=0, secure=None):
    """Serves `folder`/files, each answer after `wait_s`, for which it needs ECHO. `secure`: (certificate, key, URL of a
    server): by TLS, and all that is not below /files/ from that server."""
    (folder / "files").mkdir(parents=True)
    [port] = free_ports(1)
    temporary = "".join(f"{name}_temp_path {folder}/{name};" for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
    files = f"root {folder}/files;"
    if wait_s:
        files = f"location / {{ echo_sleep {wait_s}; echo_exec /now$uri; }} location /now/ {{ internal; alias {folder}/files/; }}"
    listen = f"listen 127.0.0.1:{port} backlog=256;"
    if secure:
        certificate, key, behind = secure
        listen = f"listen 127.0.0.1:{port} ssl backlog=256; ssl_certificate {certificate}; ssl_certificate_key {key};"
        files = (f"client_max_body_size 0; location /files/ {{ root {folder}; }} location / {{ proxy_pass {behind}; proxy_http_version 1.1; "
                 "proxy_set_header Host $http_host; proxy_set_header Connection ''; proxy_request_buffering off; proxy_buffering off; }")
    (folder / "nginx.conf").write_text(f"""{f"load_module {ECHO};" if wait_s else ""}
        daemon off; master_process off; pid {folder}/pid; error_log stderr;
        events {{ worker_connections 256; }}
        http {{ {temporary} access_log off; sendfile on;
                server {{ {listen} {files} }} }}""")
    program = "/usr/sbin/nginx" if wait_s else PACKAGES / "bin" / "nginx"
    with running(folder, port, [program, "-p", folder, "-c", folder / "nginx.conf"]) as started:
        if secure:
            started.url = started.url.replace("http:", "https:")
        yield started


def judge(url, proxy=None):
    """boto3's client. `proxy`: of moto_proxy; then `url` is None."""
    import boto3
    from botocore.config import Config

    ways = {"proxies": {"https": proxy.url}} if proxy else {"s3": {"addressing_style": "path"}}
    return boto3.client("s3", endpoint_url=url, verify=str(proxy.authority) if proxy else None, aws_access_key_id=server.KEY_ID, aws_secret_access_key=server.SECRET,
                        region_name="us-east-1", config=Config(**ways, retries={"max_attempts": 10}))
