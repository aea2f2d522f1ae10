"""Prints an SPDX 2.3 document (JSON) of a release: sbom.py VERSION SECONDS DIST

It describes every file of the folder DIST, with its SHA-256, and the libraries inside: in the one-file program those of
sources.txt and the run-time libraries of its compiler. Libraries that a file only needs are not inside it. SECONDS since
1970 are its date.
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
# Libraries in the other files: version and licence.
OTHERS = {
    "libc++": ("NOASSERTION", "Apache-2.0 WITH LLVM-exception"), "compiler-rt-of-zig": ("NOASSERTION", "MIT"),
    "nanobind": ("NANOBIND", "BSD-3-Clause"), "robin-map": ("NOASSERTION", "MIT"),
    "cuda-runtime": ("NOASSERTION", "LicenseRef-CUDA"), "libaec": ("NOASSERTION", "BSD-2-Clause"), "glibc": ("NOASSERTION", "LGPL-2.1-or-later"),
    "libstdc++": ("NOASSERTION", "GPL-3.0-or-later WITH GCC-exception-3.1"), "mkdocs-material": ("MKDOCS_MATERIAL", "MIT"),
}
LICENCE_TEXTS = {
    "LicenseRef-HDF5": "The licence of HDF5, in shardctl-VERSION-licences.txt",
    "LicenseRef-CUDA": "The licence agreement of NVIDIA's CUDA toolkit, in plugins-licences.txt of the archive of the plug-ins",
}
IN_PROGRAM = {*LICENCES, "libc++", "compiler-rt-of-zig"}
# The libraries inside the files whose names match.
INSIDE = [
    (r"shardctl-[\d.]+-linux-.*|.*\.whl", IN_PROGRAM),
    (r".*-cp\d+-.*\.whl", {"nanobind", "robin-map"}),
    (r".*-plugins-linux-.*|.*-manylinux_2_34_.*\.whl", {"fmtlib", "nlohmann-json3", "cuda-runtime"}),
    (r"shardctl_.*\.deb", {"cli11", "nlohmann-json3", "spdlog"}),
    # The parser of HDF5 files is linked without shared libraries.
    (r"libshard\d.*\.deb", {"nlohmann-json3", "hdf5", "zlib", "libaec", "libseccomp", "glibc", "libstdc++"}),
    (r".*-site\.tar\.xz", {"mkdocs-material"}),
]


def package(name: str, version: str, licence: str, sha256: str | None = None, **fields) -> dict:
    checksums = {"checksums": [{"algorithm": "SHA256", "checksumValue": sha256}]} if sha256 else {}
    return {"SPDXID": "SPDXRef-" + re.sub("[^A-Za-z0-9.]", "-", name), "name": name, "versionInfo": version, "downloadLocation": "NOASSERTION",
            "filesAnalyzed": False, "licenseConcluded": licence, "licenseDeclared": licence, "copyrightText": "NOASSERTION",
            **checksums, **fields}


def libraries_in(name: str) -> set[str]:
    return set().union(*(libraries for pattern, libraries in INSIDE if re.fullmatch(pattern, name)))


def libraries() -> list[dict]:
    lines = [line.split() for line in Path(__file__).with_name("sources.txt").read_text().splitlines() if not line.startswith("#")]
    found = [package(name, tarball.split("_", 1)[1].split(".orig.")[0], LICENCES[name], sha256, packageFileName=tarball)
             for name, tarball, sha256, *_ in lines]
    pinned = dict(re.findall(r"^(\w+)=(\S+)$", Path(__file__).parents[1].joinpath("versions.env").read_text(), re.MULTILINE))
    return [*found, *(package(name, pinned.get(version, version), licence) for name, (version, licence) in OTHERS.items())]


def document(version: str, seconds: int, dist: Path) -> dict:
    hashes = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(dist.iterdir()) if path.is_file()}
    files = [package(f"File-{number}", version, "NOASSERTION", sha256) | {"name": name, "packageFileName": name}
             for number, (name, sha256) in enumerate(hashes.items())]
    known = libraries()
    relations = [("SPDXRef-DOCUMENT", "DESCRIBES", file) for file in files]
    relations += [(file["SPDXID"], "CONTAINS", library) for file in files for library in known if library["name"] in libraries_in(file["name"])]
    used = {library["SPDXID"] for _, kind, library in relations if kind == "CONTAINS"}
    inside = [library for library in known if library["SPDXID"] in used]
    return {
        "spdxVersion": "SPDX-2.3", "dataLicense": "CC0-1.0", "SPDXID": "SPDXRef-DOCUMENT", "name": f"shardctl-{version}",
        "documentNamespace": f"urn:shardctl:{version}:{hashlib.sha256(json.dumps(hashes).encode()).hexdigest()}",
        "creationInfo": {"created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds)), "creators": ["Tool: scripts/release"]},
        "packages": [*files, *inside],
        "hasExtractedLicensingInfos": [{"licenseId": name, "extractedText": text.replace("VERSION", version)}
                                       for name, text in LICENCE_TEXTS.items() if any(each["licenseDeclared"] == name for each in inside)],
        "relationships": [{"spdxElementId": first, "relationshipType": kind, "relatedSpdxElement": second["SPDXID"]}
                          for first, kind, second in relations],
    }


if __name__ == "__main__":
    print(json.dumps(document(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])), indent=1))
