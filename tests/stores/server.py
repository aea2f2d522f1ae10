"""A small server on the loopback for tests: S3 with signatures, files of the web, a hub with the servers it redirects to.

    with Server(folder) as server: ... server.url, server.elsewhere_url

Files are in `folder`: s3/BUCKET/KEY, web/PATH, hub/ORG/NAME/PATH. Objects of S3 need a signature by KEY_ID and SECRET
unless the bucket's name begins with "public". `server.faults` is a list of Fault: the first that fits a request spoils
its answer. `server.log` has a line "METHOD PATH RANGE" for each request. Standard library, and libisal (which shardctl
needs too) for CRC-32C.
"""
import base64
import ctypes
import dataclasses
import datetime
import email.utils
import hashlib
import hmac
import http.server
import json
import os
import re
import shutil
import socket
import ssl
import struct
import subprocess
import threading
import time
import urllib.parse
from xml.sax.saxutils import escape

CRC32C = ctypes.CDLL("libisal.so.2").crc32_iscsi
CRC32C.restype, CRC32C.argtypes = ctypes.c_uint32, [ctypes.c_char_p, ctypes.c_int, ctypes.c_uint32]
KEY_ID, SECRET, TOKEN, GOOGLE_TOKEN = "TESTKEY", "TESTSECRET", "hf_test", "google-token"
COMMIT = "0123456789abcdef0123456789abcdef01234567"
CODES = {400: "InvalidRequest", 403: "AccessDenied", 404: "NoSuchKey", 412: "PreconditionFailed", 416: "InvalidRange",
         409: "ConditionalRequestConflict", 429: "TooManyRequests", 500: "InternalError", 503: "SlowDown"}
LEAST_PART = 5 << 20


@dataclasses.dataclass
class Fault:
    """`match` is searched in "METHOD PATH". `kind` is a status, or one of the words in Handler.spoil and Handler.file.
    `times` is the number of requests that it spoils, after `after` others. "$N" in a "body" is a number that grows."""
    match: str
    kind: str
    times: int = 1
    after: int = 0
    value: str = ""


class Handler(http.server.BaseHTTPRequestHandler):
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
        is_identity = path in ("", "/") and self.command == "POST"
        if path.startswith(("/latest/", "/role/", "/computeMetadata/")) or is_identity or "Action" in self.query:
            return self.identity(path)
        if match := re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
            return self.hub_file(*match.groups())
        if match := re.fullmatch(r"/api/models/([^/]+/[^/]+)/(revision|tree)/([^/]+)", path):
            return self.hub_list(*match.groups())
        bucket, _, key = path[1:].partition("/")
        if not bucket.startswith("public") and not self.is_signed():
            return None
        if not os.path.isdir(os.path.join(root, "s3", bucket)):
            return self.fail(404, "NoSuchBucket")
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
            return self.fail(403)
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
        if self.kind == "short_length":
            said = max(0, said - 1)
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
        if self.kind == "short_length":
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

    # ---- S3.

    def s3_list(self, folder, bucket):
        prefix, delimiter = self.query.get("prefix", ""), self.query.get("delimiter", "")
        after, most = self.query.get("continuation-token", ""), self.server.owner.page
        names = {}
        for at, _, files in os.walk(folder):
            for each in files:
                path = os.path.join(at, each)
                key = os.path.relpath(path, folder)
                cut = key.find(delimiter, len(prefix)) if delimiter and key.startswith(prefix) else -1
                if key.startswith(prefix):
                    names[key if cut < 0 else key[:cut + 1]] = path if cut < 0 else None
        rows, wanted = [], sorted(name for name in names if name > after)
        for name in wanted[:most]:
            shown = urllib.parse.quote(name, safe="/")
            if names[name] is None:
                rows.append(f"<CommonPrefixes><Prefix>{shown}</Prefix></CommonPrefixes>")
                continue
            tag = escape(etag_of(names[name]), {'"': "&quot;"})
            rows.append(f"<Contents><Key>{shown}</Key><ETag>{tag}</ETag><Size>{os.path.getsize(names[name])}</Size></Contents>")
        is_cut = len(wanted) > most
        token = f"<NextContinuationToken>{escape(wanted[most - 1])}</NextContinuationToken>" if is_cut else ""
        self.reply(200, f'<?xml version="1.0"?><ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><Name>{bucket}</Name>'
                   f'<EncodingType>url</EncodingType><IsTruncated>{str(is_cut).lower()}</IsTruncated>{"".join(rows)}{token}</ListBucketResult>')

    # ---- S3: writing. An upload is a folder "uploads/NAME" with its parts.

    def s3_uploads(self, bucket):
        prefix = self.query.get("prefix", "")
        rows = [f"<Upload><Key>{urllib.parse.quote(each['key'], safe='/')}</Key><UploadId>{name}</UploadId></Upload>"
                for name, each in sorted(self.server.owner.uploads.items()) if each["bucket"] == bucket and each["key"].startswith(prefix)]
        self.reply(200, "<ListMultipartUploadsResult><EncodingType>url</EncodingType><IsTruncated>false</IsTruncated>"
                   + "".join(rows) + "</ListMultipartUploadsResult>")

    def s3_write(self, bucket, key):
        server = self.server.owner
        path, name = os.path.join(server.folder, "s3", bucket, key), self.query.get("uploadId")
        given = self.headers.get("x-amz-checksum-crc32c")
        confirmed = [("x-amz-checksum-crc32c", "AAAAAA==" if self.kind == "other_checksum" else given)] if given and server.checksums else []
        if self.is_googles():
            confirmed = [("x-goog-hash", f"crc32c={crc32c_text(self.body)}")]
        hashed = self.headers.get("x-amz-content-sha256", "UNSIGNED-PAYLOAD")
        if hashed != "UNSIGNED-PAYLOAD":
            if hashed != hashlib.sha256(self.body).hexdigest():
                return self.fail(400, "XAmzContentSHA256Mismatch")
            server.hashed += len(self.body)
        with server.write_lock:
            if self.command == "POST" and "uploads" in self.query:
                server.upload_count += 1
                name = f"upload-{server.upload_count}"
                server.uploads[name] = {"bucket": bucket, "key": key, "run": self.run_name()}
                algorithm = [("x-amz-checksum-algorithm", "CRC32C")] if server.checksums and not self.is_googles() else []
                os.makedirs(os.path.join(server.folder, "uploads", name))
                return self.reply(200, f"<InitiateMultipartUploadResult><UploadId>{name}</UploadId></InitiateMultipartUploadResult>",
                                  algorithm)
            if name is None:
                return self.s3_object(path, confirmed)
            upload = server.uploads.get(name)
            if upload is None or (upload["bucket"], upload["key"]) != (bucket, key):
                return self.fail(404, "NoSuchUpload")
            parts = os.path.join(server.folder, "uploads", name)
            if self.command == "DELETE":
                self.drop_upload(name)
                return self.reply(204)
            if self.command == "GET":
                return self.s3_parts(parts)
            if self.command == "POST":
                return self.s3_complete(path, parts, name, upload)
        content = self.copied_range() if self.headers.get("x-amz-copy-source") else self.body
        if content is None:
            return None
        with open(os.path.join(parts, f"{int(self.query['partNumber']):05}"), "wb") as file:
            file.write(content)
        etag = f'"{hashlib.md5(content).hexdigest()}"'
        if self.headers.get("x-amz-copy-source"):
            with server.lock:
                server.copied += len(content)
            checksum = f"<ChecksumCRC32C>{crc32c_text(content)}</ChecksumCRC32C>" if server.checksums else ""
            return self.reply(200, f"<CopyPartResult><ETag>{escape(etag)}</ETag>{checksum}</CopyPartResult>")
        with server.lock:
            server.received += len(content)
        return self.reply(200, headers=[("ETag", etag), *confirmed])

    def copied_range(self):
        """The bytes that an UploadPartCopy asks for, or None after an error."""
        source = os.path.join(self.server.owner.folder, "s3", urllib.parse.unquote(self.headers["x-amz-copy-source"]).lstrip("/"))
        if not self.server.owner.copies:
            return self.fail(501, "NotImplemented")
        if not os.path.isfile(source):
            return self.fail(404)
        if self.headers.get("x-amz-copy-source-if-match") not in (None, etag_of(source)):
            return self.fail(412)
        begin, end = map(int, re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers["x-amz-copy-source-range"]).groups())
        return bytes_of(source, begin, end + 1)

    def is_googles(self):
        """Whether a request has Google's names for headers. Its answers have them too."""
        return self.headers.get("Authorization", "").startswith("Bearer ")

    def run_name(self):
        return self.headers.get("x-goog-meta-shardctl-run" if self.is_googles() else "x-amz-meta-shardctl-run", "")

    def is_allowed(self, path):
        """Checks the condition of a write."""
        if not self.server.owner.conditions:
            return True
        there = etag_of(path) if os.path.isfile(path) else None
        wanted = self.headers.get("If-Match")
        is_new = (self.headers.get("x-goog-if-generation-match") == "0" if self.is_googles() else self.headers.get("If-None-Match") == "*")
        if (is_new and there) or (wanted and wanted != there):
            self.fail(412)
            return False
        return True

    def s3_object(self, path, confirmed):
        owner = self.server.owner
        if self.command == "DELETE":
            if os.path.isfile(path):
                os.remove(path)
                owner.runs.pop(os.path.realpath(path), None)
                folder = os.path.dirname(path)
                while not os.listdir(folder) and os.path.basename(os.path.dirname(folder)) != "s3":
                    os.rmdir(folder)
                    folder = os.path.dirname(folder)
            return self.reply(204)
        if not self.is_allowed(path):
            return None
        self.store(path, [self.body], self.run_name(), hashlib.md5(self.body).hexdigest())
        owner.received += len(self.body)
        return self.reply(200, headers=[("ETag", etag_of(path)), *confirmed])

    def store(self, path, pieces, run, etag):
        os.makedirs(os.path.dirname(path), exist_ok=True)
        new = os.path.join(self.server.owner.folder, f"new-{threading.get_ident()}")
        with open(new, "wb") as file:
            for each in pieces:
                file.write(each)
        os.rename(new, path)
        self.server.owner.runs[os.path.realpath(path)] = run
        ETAGS[os.path.realpath(path)] = (os.stat(path).st_mtime_ns, f'"{etag}"')

    def s3_parts(self, parts):
        numbers, after = sorted(os.listdir(parts)), int(self.query.get("part-number-marker", 0))
        rest = [each for each in numbers if int(each) > after]
        rows = []
        for each in rest[:self.server.owner.page]:
            content = bytes_of(os.path.join(parts, each), 0, None)
            rows.append(f"<Part><PartNumber>{int(each)}</PartNumber><ETag>&quot;{hashlib.md5(content).hexdigest()}&quot;</ETag>"
                        f"<Size>{len(content)}</Size></Part>")
        is_cut = str(len(rest) > self.server.owner.page).lower()
        self.reply(200, f"<ListPartsResult><IsTruncated>{is_cut}</IsTruncated>{''.join(rows)}</ListPartsResult>")

    def s3_complete(self, path, parts, name, upload):
        if self.kind == "inner_error":
            return self.reply(200, "<?xml version='1.0'?>  <Error><Code>InternalError</Code></Error>")
        if self.server.owner.checksums and not self.is_googles() and self.body.count(b"<Part>") != self.body.count(b"<ChecksumCRC32C>"):
            return self.fail(400, "InvalidRequest")
        asked = re.findall(r"<PartNumber>(\d+)</PartNumber><ETag>([^<]+)</ETag>", self.body.decode())
        pieces = [bytes_of(os.path.join(parts, f"{int(number):05}"), 0, None) for number, _ in asked]
        sums = [hashlib.md5(each) for each in pieces]
        if any(etag.strip('"') != each.hexdigest() for (_, etag), each in zip(asked, sums)):
            return self.fail(400, "InvalidPart")
        if any(len(each) < LEAST_PART for each in pieces[:-1]):
            return self.fail(400, "EntityTooSmall")
        if not self.is_allowed(path):
            return None
        self.store(path, pieces, upload["run"], hashlib.md5(b"".join(each.digest() for each in sums)).hexdigest() + f"-{len(sums)}")
        self.drop_upload(name)
        return self.reply(200, "<CompleteMultipartUploadResult></CompleteMultipartUploadResult>")

    def drop_upload(self, name):
        self.server.owner.uploads.pop(name)
        shutil.rmtree(os.path.join(self.server.owner.folder, "uploads", name))

    def is_signed(self):
        """Checks the signature as AWS describes it."""
        if self.headers.get("Authorization") == f"Bearer {GOOGLE_TOKEN}":
            return True
        given = re.fullmatch(r"AWS4-HMAC-SHA256 Credential=([^/]+)/(\d{8})/([^/]+)/(s3|sts)/aws4_request, SignedHeaders=([^,]+), "
                             r"Signature=([0-9a-f]{64})", self.headers.get("Authorization", ""))
        if not given:
            return self.fail(403)
        key_id, day, region, service, names, signature = given.groups()
        if key_id != KEY_ID:
            return self.fail(403, "InvalidAccessKeyId")
        if self.headers.get("x-amz-security-token") == "expired":
            return self.fail(400, "ExpiredToken")
        date = self.headers["x-amz-date"]
        now = datetime.datetime.now(datetime.timezone.utc).replace(tzinfo=None)
        if abs((datetime.datetime.strptime(date, "%Y%m%dT%H%M%SZ") - now).total_seconds()) > 900:
            return self.fail(403, "RequestTimeTooSkewed")
        needed = {"host", "x-amz-date"} | {name.lower() for name in self.headers if name.lower().startswith("x-amz-")}
        pairs = sorted(part.partition("=")[::2] for part in self.raw.query.split("&") if part)
        canonical = "\n".join([
            self.command, urllib.parse.quote(urllib.parse.unquote(self.raw.path), safe="/-_.~"),
            "&".join("=".join(urllib.parse.quote(urllib.parse.unquote(part), safe="-_.~") for part in pair) for pair in pairs),
            "".join(f"{name}:{self.headers.get(name, '').strip()}\n" for name in names.split(";")), names,
            self.headers.get("x-amz-content-sha256", hashlib.sha256(self.body).hexdigest())])
        key = ("AWS4" + SECRET).encode()
        for part in (day, region, service, "aws4_request"):
            key = hmac.new(key, part.encode(), hashlib.sha256).digest()
        text = f"AWS4-HMAC-SHA256\n{date}\n{day}/{region}/{service}/aws4_request\n{hashlib.sha256(canonical.encode()).hexdigest()}"
        right = hmac.new(key, text.encode(), hashlib.sha256).hexdigest()
        if signature != right or not needed <= set(names.split(";")):
            return self.fail(403, "SignatureDoesNotMatch")
        return True

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
            if revision not in ("main", "v1", COMMIT):
                return self.reply(404, headers=[("X-Error-Code", "RevisionNotFound")])
            return self.reply(200, json.dumps({"sha": COMMIT}))
        rows = sorted((os.path.relpath(os.path.join(at, each), base), os.path.getsize(os.path.join(at, each)))
                      for at, _, files in os.walk(base) for each in files)
        begin, page = int(self.query.get("cursor", 0)), self.server.owner.page
        entries = [{"type": "file", "path": path, "size": size, "oid": "0" * 40} for path, size in rows[begin:begin + page]]
        more = f'<{self.server.owner.url}/api/models/{repository}/tree/{revision}?recursive=true&cursor={begin + page}>; rel="next"'
        return self.reply(200, json.dumps(entries), [("Link", more)] if begin + page < len(rows) else [])


def bytes_of(path, begin, end):
    with open(path, "rb", buffering=0) as file:
        file.seek(begin)
        return file.read() if end is None else file.read(end - begin)


ETAGS = {}  # ETags of objects that were written through a server, with the time of their last change.


def crc32c_text(content):
    return base64.b64encode(struct.pack(">I", CRC32C(bytes(content), len(content), 0xFFFFFFFF) ^ 0xFFFFFFFF)).decode()


def etag_of(path):
    status = os.stat(path)
    time_ns, etag = ETAGS.get(os.path.realpath(path), (0, ""))
    if time_ns == status.st_mtime_ns:
        return etag
    return f'"{status.st_mtime_ns:x}-{status.st_size:x}"'


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
