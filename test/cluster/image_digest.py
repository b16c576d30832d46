#!/usr/bin/python3
"""image_digest.py OCI-ARCHIVE...: the compressed size of each image's layers in bytes, and its digest.

Of an index of several architectures it is the largest image's size. The archives must have one digest.
"""

import json
import sys
import tarfile


def image(path):
    with tarfile.open(path) as tar:

        def blob(name):
            return json.load(tar.extractfile(name))

        digest = blob("index.json")["manifests"][0]["digest"]
        manifest = blob("blobs/" + digest.replace(":", "/"))
        entries = [m["digest"] for m in manifest.get("manifests", [])]
        images = [blob("blobs/" + d.replace(":", "/")) for d in entries] or [manifest]
        return max(sum(layer["size"] for layer in i["layers"]) for i in images), digest


if __name__ == "__main__":
    found = [image(path) for path in sys.argv[1:]]
    for size, digest in found:
        print(size, digest)
    sys.exit(len({digest for _, digest in found}) > 1)
