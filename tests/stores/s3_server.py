"""The part of server.py that is S3: lists, writes and signatures. Files are in `folder`: s3/BUCKET/KEY; an upload is a
folder uploads/NAME with its parts. Standard library, and libisal (which shardctl needs too) for CRC-32C.
"""
import base64
import ctypes
import datetime
import hashlib
import hmac
import os
import re
import shutil
import struct
import threading
import urllib.parse
from xml.sax.saxutils import escape

CRC32C = ctypes.CDLL("libisal.so.2").crc32_iscsi
CRC32C.restype, CRC32C.argtypes = ctypes.c_uint32, [ctypes.c_char_p, ctypes.c_int, ctypes.c_uint32]
KEY_ID, SECRET, GOOGLE_TOKEN = "TESTKEY", "TESTSECRET", "google-token"
LEAST_PART = 5 << 20
ETAGS = {}  # ETags of objects that were written through a server, with the time of their last change.


def bytes_of(path, begin, end):
    with open(path, "rb", buffering=0) as file:
        file.seek(begin)
        return file.read() if end is None else file.read(end - begin)


def crc32c_text(content):
    return base64.b64encode(struct.pack(">I", CRC32C(bytes(content), len(content), 0xFFFFFFFF) ^ 0xFFFFFFFF)).decode()


def etag_of(path):
    status = os.stat(path)
    time_ns, etag = ETAGS.get(os.path.realpath(path), (0, ""))
    if time_ns == status.st_mtime_ns:
        return etag
    return f'"{status.st_mtime_ns:x}-{status.st_size:x}"'


class S3:
    """Answers to requests about objects, for a handler with `reply`, `fail`, `query`, `body` and `kind`."""

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
            shown = urllib.parse.quote_plus(name, safe="/")
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
        rows = [f"<Upload><Key>{urllib.parse.quote_plus(each['key'], safe='/')}</Key><UploadId>{name}</UploadId></Upload>"
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
