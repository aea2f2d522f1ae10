"""A small server on the loopback for tests: S3 with signatures, files of the web, a hub with the servers it redirects to.

    with Server(folder) as server: ... server.url, server.elsewhere_url

Files are in `folder`: s3/BUCKET/KEY, web/PATH, hub/ORG/NAME/PATH. Objects of S3 need a signature by KEY_ID and SECRET
unless the bucket's name begins with "public". If it ends with "unlisted", lists are refused; so are absent objects of
"public-unlisted", as by AWS. `server.faults` is a list of Fault: the first that fits a request spoils its answer.
`server.log` has a line "METHOD PATH RANGE" for each request.
"""
import dataclasses
import datetime
import email.utils
import http.server
import json
import os
import re
import socket
import ssl
import struct
import subprocess
import threading
import time
import urllib.parse

from s3_server import GOOGLE_TOKEN, KEY_ID, LEAST_PART, S3, SECRET, bytes_of, etag_of  # noqa: F401: for the tests

TOKEN = "hf_test"
COMMIT = "0123456789abcdef0123456789abcdef01234567"
BASE = "/below/a/path"  # The hub and S3 answer below it too.
CODES = {400: "InvalidRequest", 403: "AccessDenied", 404: "NoSuchKey", 412: "PreconditionFailed", 416: "InvalidRange",
         409: "ConditionalRequestConflict", 429: "TooManyRequests", 500: "InternalError", 503: "SlowDown"}


@dataclasses.dataclass
class Fault:
    """`match` is searched in "METHOD PATH". `kind` is a status, or one of the words in Handler.spoil and Handler.file.
    `times` is the number of requests that it spoils, after `after` others. "$N" in a "body" is a number that grows."""
    match: str
    kind: str
    times: int = 1
    after: int = 0
    value: str = ""


class Handler(S3, http.server.BaseHTTPRequestHandler):
    protocol_version, disable_nagle_algorithm, kind = "HTTP/1.1", True, ""

    def log_message(self, *_):
        pass

    # ---- Answers.

    def reply(self, status, body=b"", headers=()):
        if self.kind == "lost" and self.command not in ("GET", "HEAD"):
            return
        body = body.encode() if isinstance(body, str) else body
        self.send_response(status)
        for name, value in headers:
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def fail(self, status, code="", headers=()):
        code = code or CODES.get(status, "Error")
        self.reply(status, f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>a test</Message></Error>",
                   [("Content-Type", "application/xml"), *headers])

    def hang_up(self, reset):
        self.wfile.flush()
        if reset:
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close_connection = True
        try:
            self.connection.close() if reset else self.connection.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass

    # ---- The front.

    def answer(self):
        server, self.kind = self.server.owner, ""
        server.begins.append(time.monotonic())
        time.sleep(server.latency)
        url = urllib.parse.urlsplit(self.path)
        self.query = dict(urllib.parse.parse_qsl(url.query, keep_blank_values=True))
        self.raw = url
        path = urllib.parse.unquote(url.path)
        length = int(self.headers.get("Content-Length") or 0)
        self.body = self.rfile.read(length)
        if path == "/_faults":  # For tests in C++: {"match": ..., "kind": ...}, or nothing.
            server.reset(*[Fault(**json.loads(self.body))] if self.body else [])
            return self.reply(200)
        line = f"{self.command} {self.path}"
        if server.stops_at is not None and len(server.log) >= server.stops_at:
            server.on_stop()  # Ends the client before this request is handled.
            return self.hang_up(reset=True)
        with server.lock:
            server.log.append(f"{line} {self.headers.get('Range', '')}".strip())
            server.authorizations.append((self.server.is_elsewhere, self.headers.get("Authorization", "")))
            self.fault = next((each for each in server.faults if each.times > 0 and re.search(each.match, line)), None)
            if self.fault and self.fault.after > 0:
                self.fault.after -= 1
                self.fault = None
            elif self.fault:
                self.fault.times -= 1
        self.kind = self.fault.kind if self.fault else ""
        if not self.spoil():
            self.route(path)
        if self.kind == "lost" and self.command not in ("GET", "HEAD"):  # Everything was done.
            self.hang_up(reset=True)
        return None

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = answer

    def do_CONNECT(self):
        """A proxy for https:// that notes the host, and refuses."""
        with self.server.owner.lock:
            self.server.owner.log.append(f"CONNECT {self.path}")
        self.reply(403)

    def spoil(self):
        """Answers with the fault, if that needs no file."""
        server, kind, value = self.server.owner, self.kind, self.fault.value if self.fault else ""
        if kind.isdigit():
            headers = [("Retry-After", value)] if kind in ("429", "503") and value else []
            self.fail(int(kind), "" if headers else value, headers)
        elif kind == "touch":  # The file `value` changes before the request is handled.
            os.utime(value, ns=(1, 1))
            return False
        elif kind == "drop":
            self.hang_up(reset=True)
        elif kind == "redirect":
            self.reply(302, headers=[("Location", value or self.path)])
        elif kind == "headers":
            self.reply(200, headers=[(f"X-{i}", "x" * 8000) for i in range(60)])
        elif kind == "endless":
            self.send_response(200)
            self.end_headers()
            try:
                while True:
                    self.wfile.write(b"<a>" * 100000)
            except OSError:
                self.close_connection = True
        elif kind == "body":
            self.reply(200, value.replace("$N", str(len(server.log))), [("Content-Type", "application/xml")])
        elif kind == "gzip":
            self.reply(200, b"\x1f\x8b", [("Content-Encoding", "gzip")])
        elif kind == "region":
            self.fail(301, "PermanentRedirect", [("x-amz-bucket-region", value)])
        else:
            return False
        return True

    def route(self, path):
        root = self.server.owner.folder
        if self.server.is_elsewhere:
            return self.file(os.path.join(root, "hub", path.lstrip("/")))
        if path.startswith("/web/"):
            return self.file(os.path.join(root, path.lstrip("/")), is_web=True)
        path = path.removeprefix(BASE)
        is_identity = path in ("", "/") and self.command == "POST"
        if path.startswith(("/latest/", "/role/", "/computeMetadata/")) or is_identity or "Action" in self.query:
            return self.identity(path)
        if path.startswith(("/old/", "/api/models/old/")):  # The hub's answer to the former name of an organization.
            return self.reply(307, headers=[("Location", self.path.replace("/old/", "/org/", 1))])
        if match := re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
            return self.hub_file(*match.groups())
        if match := re.fullmatch(r"/api/models/([^/]+/[^/]+)/(revision|tree)/(.+)", path):
            return self.hub_list(*match.groups())
        bucket, _, key = path[1:].partition("/")
        if not bucket.startswith("public") and not self.is_signed():
            return None
        if not os.path.isdir(os.path.join(root, "s3", bucket)):
            return self.fail(404, "NoSuchBucket")
        is_unlisted = bucket.endswith("unlisted") and self.command == "GET"
        if is_unlisted and (not key or bucket.startswith("public") and not os.path.isfile(os.path.join(root, "s3", bucket, key))):
            return self.fail(403)
        if not key:
            if "uploads" in self.query:
                return self.s3_uploads(bucket)
            return self.s3_list(os.path.join(root, "s3", bucket), bucket)
        if self.command in ("PUT", "POST", "DELETE") or "uploadId" in self.query:
            return self.s3_write(bucket, key)
        return self.file(os.path.join(root, "s3", bucket, key))

    # ---- Bytes.

    def file(self, path, headers=(), is_web=False):
        if is_web and os.path.isdir(path):
            if " " in path:  # Caddy's redirect, whose address has the space.
                return self.reply(308, headers=[("Location", urllib.parse.unquote(self.path) + "/")])
            return self.fail(405 if path.endswith(".ckpt") else 403)  # 405: servers of WebDAV.
        if not os.path.isfile(path):
            return self.fail(404)
        size, etag, modified = os.path.getsize(path), etag_of(path), os.stat(path).st_mtime
        if self.kind == "replaced":
            etag, modified = '"replaced"', 0
        wanted = self.headers.get("If-Match")
        if wanted and wanted != etag:
            return self.fail(412)
        begin, end, status = 0, size, 200
        asked = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range") or "")
        if asked and self.kind != "no_ranges":
            begin, end, status = int(asked[1]), min(size, int(asked[2]) + 1), 206
            if begin >= size:
                return self.fail(416, headers=[("Content-Range", f"bytes */{size}")])
        if self.command == "GET":
            with self.server.owner.lock:
                self.server.owner.sent += end - begin
        said = end - begin
        shown = begin
        if self.kind == "other_range":
            shown = begin + 1
        if self.kind == "too_long":
            said += 1000
        self.send_response(status)
        for name, value in headers:
            self.send_header(name, value)
        if status == 206:
            total = size + 1 if self.kind == "other_size" else size
            self.send_header("Content-Range", f"bytes {shown}-{shown + end - begin - 1}/{total}")
        if self.kind in ("short_length", "encoded"):
            said = max(0, said - 1)
        if self.kind == "encoded":
            self.send_header("Content-Encoding", "gzip")
        self.send_header("Content-Length", str(said))
        if self.kind == "other_etag":
            self.send_header("ETag", '"other"')
        elif is_web and self.server.owner.hides_etags:
            self.send_header("Last-Modified", email.utils.formatdate(modified, usegmt=True))
        else:
            self.send_header("ETag", etag)
        if run := self.server.owner.runs.get(os.path.realpath(path)):
            self.send_header("X-Goog-Meta-Shardctl-Run" if self.is_googles() else "X-Amz-Meta-Shardctl-Run", run)
        self.end_headers()
        if self.command == "HEAD":
            return None
        if not self.kind and begin < end:
            self.wfile.flush()
            with open(path, "rb") as file:
                self.connection.sendfile(file, begin, end - begin)
            return None
        content = bytes_of(path, begin, end)
        if self.kind in ("cut", "reset", "stall"):
            content = content[:len(content) // 2]
        if self.kind in ("short_length", "encoded"):
            content = content[:said]
        if self.kind == "slow":
            for i in range(0, len(content), 1024):
                self.wfile.write(content[i:i + 1024])
                time.sleep(0.002)
        else:
            self.wfile.write(content)
        if self.kind == "stall":
            self.wfile.flush()
            time.sleep(float(self.fault.value or 5))
        if self.kind in ("cut", "reset", "too_long", "stall"):
            self.hang_up(self.kind == "reset")
        return None

    # ---- Services that give credentials: a machine's, a container's, and the token service.

    def identity(self, path):
        end = (datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(seconds=self.server.owner.lasts_s)).strftime("%Y-%m-%dT%H:%M:%SZ")
        keys = {"AccessKeyId": KEY_ID, "SecretAccessKey": SECRET, "Expiration": end,
                "Token": self.server.owner.tokens.pop() if self.server.owner.tokens else "session"}
        if path == "/latest/api/token":
            return self.reply(200, "machine-token")
        if path == "/latest/meta-data/iam/security-credentials/":
            return self.reply(200, "role")
        if path == "/latest/meta-data/iam/security-credentials/role":
            return self.reply(200, json.dumps(keys)) if self.headers.get("X-aws-ec2-metadata-token") == "machine-token" else self.fail(401)
        if path == "/role/container":
            return self.reply(200, json.dumps(keys)) if self.headers.get("Authorization") == "container-token" else self.fail(403)
        if path == "/computeMetadata/v1/instance/service-accounts/default/token":
            token = json.dumps({"access_token": GOOGLE_TOKEN, "expires_in": self.server.owner.lasts_s})
            return self.reply(200, token) if self.headers.get("Metadata-Flavor") == "Google" else self.fail(403)
        form = {**self.query, **dict(urllib.parse.parse_qsl(self.body.decode()))}
        action = form.get("Action")
        if action == "AssumeRole":
            if not self.is_signed():
                return None
        elif action != "AssumeRoleWithWebIdentity" or form.get("WebIdentityToken") != "web-token":
            return self.fail(403)
        return self.reply(200, f"<{action}Response><{action}Result><Credentials>"
                          f"<AccessKeyId>{KEY_ID}</AccessKeyId><SecretAccessKey>{SECRET}</SecretAccessKey>"
                          f"<SessionToken>{form['RoleSessionName']}</SessionToken><Expiration>{end}</Expiration>"
                          f"</Credentials></{action}Result></{action}Response>")

    # ---- The hub.

    def may_read(self, repository):
        return not repository.startswith("gated/") or self.headers.get("Authorization") == f"Bearer {TOKEN}"

    def hub_file(self, repository, revision, name):
        path = os.path.join(self.server.owner.folder, "hub", repository, name)
        if not self.may_read(repository):
            return self.reply(401, headers=[("X-Error-Code", "GatedRepo")])
        if revision != COMMIT:
            return self.reply(404, headers=[("X-Error-Code", "RevisionNotFound")])
        if not os.path.isfile(path):
            return self.reply(404, headers=[("X-Error-Code", "EntryNotFound")])
        if not name.endswith(".safetensors"):
            return self.file(path, [("X-Repo-Commit", COMMIT)])
        target = f"{self.server.owner.elsewhere_url}/{repository}/{urllib.parse.quote(name)}?signature=1"
        return self.reply(302, headers=[("X-Repo-Commit", COMMIT), ("Location", target)])

    def hub_list(self, repository, what, revision):
        base = os.path.join(self.server.owner.folder, "hub", repository)
        if not self.may_read(repository):
            return self.reply(401, headers=[("X-Error-Code", "GatedRepo")])
        if not os.path.isdir(base):
            return self.reply(404, headers=[("X-Error-Code", "RepoNotFound")])
        if what == "revision":
            if revision not in ("main", "v1", "refs/pr/1", COMMIT):
                return self.reply(404, headers=[("X-Error-Code", "RevisionNotFound")])
            return self.reply(200, json.dumps({"sha": COMMIT}))
        rows = sorted((os.path.relpath(os.path.join(at, each), base), os.path.getsize(os.path.join(at, each)))
                      for at, _, files in os.walk(base) for each in files)
        begin, page = int(self.query.get("cursor", 0)), self.server.owner.page
        entries = [{"type": "file", "path": path, "size": size, "oid": "0" * 40} for path, size in rows[begin:begin + page]]
        more = f'<{self.server.owner.url}/api/models/{repository}/tree/{revision}?recursive=true&cursor={begin + page}>; rel="next"'
        return self.reply(200, json.dumps(entries), [("Link", more)] if begin + page < len(rows) else [])


class Listener(http.server.ThreadingHTTPServer):
    daemon_threads, request_queue_size = True, 128

    def handle_error(self, *_):
        pass


class Server:
    """Two listeners: the server itself, and another host to which the hub redirects; `secure` adds one with HTTPS."""

    def __init__(self, folder):
        self.folder, self.latency, self.page, self.hides_etags = str(folder), 0.0, 1000, False
        self.faults, self.log, self.authorizations, self.begins, self.lock = [], [], [], [], threading.Lock()
        self.uploads, self.runs, self.upload_count, self.write_lock = {}, {}, 0, threading.RLock()
        self.checksums = self.conditions = self.copies = True  # Functions that the server has.
        self.received = self.copied = self.sent = 0  # Bytes of objects and parts: from the client, within the server, to the client.
        self.hashed = 0  # Bytes of bodies whose hash was signed.
        self.stops_at, self.on_stop = None, None  # Calls on_stop in place of that request, counted in `log`.
        self.tokens = []  # The first ones that a machine's or a container's service gives.
        self.lasts_s = 3600  # The time after which the credentials of such services end.
        self.listeners = [Listener(("127.0.0.1", 0), Handler) for _ in range(2)]
        for number, each in enumerate(self.listeners):
            each.owner, each.is_elsewhere = self, number == 1
        self.url, self.elsewhere_url = (f"http://127.0.0.1:{each.server_address[1]}" for each in self.listeners)
        self.address = self.url.removeprefix("http://")

    def __enter__(self):
        for each in self.listeners:
            threading.Thread(target=each.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_):
        for each in self.listeners:
            each.shutdown()
            each.server_close()

    def secure(self):
        """Serves the same by HTTPS. Returns its address and the file of its certificate, which no authority signed."""
        key, certificate = (os.path.join(self.folder, name) for name in ("key.pem", "certificate.pem"))
        subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
                        "-subj", "/CN=test", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", certificate],
                       check=True, capture_output=True)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        listener = Listener(("127.0.0.1", 0), Handler)
        listener.owner, listener.is_elsewhere = self, False
        listener.socket = context.wrap_socket(listener.socket, server_side=True)
        self.listeners.append(listener)
        threading.Thread(target=listener.serve_forever, daemon=True).start()
        return f"https://127.0.0.1:{listener.server_address[1]}", certificate

    def reset(self, *faults):
        with self.lock:
            self.faults[:], self.log[:], self.authorizations[:], self.begins[:] = faults, [], [], []
            self.received = self.copied = self.sent = 0

    def round_trips(self):
        """The largest number of requests of which each began after the answer to the one before, by `latency`."""
        count, last = 0, float("-inf")
        for begin in sorted(self.begins):
            if begin >= last + 0.9 * self.latency:
                count, last = count + 1, begin
        return count
