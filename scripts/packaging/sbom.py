"""Prints an SPDX 2.3 document (JSON) of a release: sbom.py VERSION SECONDS DIST

It describes every file of the folder DIST, with its SHA-256, and the libraries in the one-file program: those of
sources.txt, and the run-time libraries of its compiler. SECONDS since 1970 are its date.
"""
import hashlib
import json
import re
import sys
import time
from pathlib import Path

# SPDX's identifiers. A library that sources.txt gets must be added here.
LICENCES = {
    "fmtlib": "MIT", "spdlog": "MIT", "re2": "BSD-3-Clause", "xxhash": "BSD-2-Clause", "openssl": "Apache-2.0",
    "libisal": "BSD-3-Clause", "zlib": "Zlib", "libzstd": "BSD-3-Clause", "simdjson": "Apache-2.0", "cli11": "BSD-3-Clause",
    "nlohmann-json3": "MIT", "libyaml": "MIT", "hdf5": "LicenseRef-HDF5", "libseccomp": "LGPL-2.1-only",
    "curl": "curl", "pugixml": "MIT",
}


def package(name: str, version: str, licence: str, sha256: str | None = None, **fields) -> dict:
    checksums = {"checksums": [{"algorithm": "SHA256", "checksumValue": sha256}]} if sha256 else {}
    return {"SPDXID": "SPDXRef-" + re.sub("[^A-Za-z0-9.]", "-", name), "name": name, "versionInfo": version, "downloadLocation": "NOASSERTION",
            "filesAnalyzed": False, "licenseConcluded": licence, "licenseDeclared": licence, "copyrightText": "NOASSERTION",
            **checksums, **fields}


def libraries() -> list[dict]:
    lines = [line.split() for line in Path(__file__).with_name("sources.txt").read_text().splitlines() if not line.startswith("#")]
    found = [package(name, tarball.split("_", 1)[1].split(".orig.")[0], LICENCES[name], sha256, packageFileName=tarball)
             for name, tarball, sha256, *_ in lines]
    return [*found, package("libc++", "NOASSERTION", "Apache-2.0 WITH LLVM-exception"), package("compiler-rt-of-zig", "NOASSERTION", "MIT")]


def document(version: str, seconds: int, dist: Path) -> dict:
    hashes = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(dist.iterdir()) if path.is_file()}
    files = [package(f"File-{number}", version, "NOASSERTION", sha256) | {"name": name, "packageFileName": name}
             for number, (name, sha256) in enumerate(hashes.items())]
    inside = libraries()
    programs = [file for file in files if file["name"].startswith(f"shardctl-{version}-linux-") or file["name"].endswith(".whl")]
    relations = [("SPDXRef-DOCUMENT", "DESCRIBES", file) for file in files]
    relations += [(program["SPDXID"], "CONTAINS", library) for program in programs for library in inside]
    text = f"The licence of HDF5, in shardctl-{version}-licences.txt"
    return {
        "spdxVersion": "SPDX-2.3", "dataLicense": "CC0-1.0", "SPDXID": "SPDXRef-DOCUMENT", "name": f"shardctl-{version}",
        "documentNamespace": f"urn:shardctl:{version}:{hashlib.sha256(json.dumps(hashes).encode()).hexdigest()}",
        "creationInfo": {"created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds)), "creators": ["Tool: scripts/release"]},
        "packages": [*files, *inside],
        "hasExtractedLicensingInfos": [{"licenseId": "LicenseRef-HDF5", "extractedText": text}],
        "relationships": [{"spdxElementId": first, "relationshipType": kind, "relatedSpdxElement": second["SPDXID"]}
                          for first, kind, second in relations],
    }


if __name__ == "__main__":
    print(json.dumps(document(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])), indent=1))
