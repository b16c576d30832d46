#!/usr/bin/python3
"""image_digest.py OCI-ARCHIVE...: the compressed size of an image's layers in bytes, and its digest. Several: they must be of one digest."""

import json
import sys
import tarfile


def image(path):
    with tarfile.open(path) as tar:

        def blob(name):
            return json.load(tar.extractfile(name))

        digest = blob("index.json")["manifests"][0]["digest"]
        layers = blob("blobs/" + digest.replace(":", "/"))["layers"]
        return sum(l["size"] for l in layers), digest


if __name__ == "__main__":
    found = [image(path) for path in sys.argv[1:]]
    for size, digest in found:
        print(size, digest)
    sys.exit(len({digest for _, digest in found}) > 1)
