"""Bucket → bucket: build a dataset from text in an object store, verify it there, and read one document back.

    python workflows/bucket_to_bucket.py workflows/bucket_to_bucket.yaml
    ray job submit --working-dir . -- python workflows/bucket_to_bucket.py workflows/bucket_to_bucket.yaml

Every node needs credentials in its environment, and AWS_ENDPOINT_URL if the server is not Amazon's. The work folder is
in the bucket, so the nodes need no shared disk.
"""

import sys

import yaml

import dsindex


def main(path: str) -> int:
    """Run the steps with the options of a YAML file; return 1 if the dataset is damaged."""
    with open(path, encoding="utf-8") as file:
        options = yaml.safe_load(file)
    built = dsindex.build(**options["build"], progress=True)
    dsindex.show(built)
    checked = dsindex.verify(built)
    dsindex.show(checked)
    documents = dsindex.open(built)
    print(f"{len(documents):,} documents; the first begins with the tokens {documents[0][:8].tolist()}")
    return 0 if checked else 1


if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        sys.exit(__doc__)
    sys.exit(main(sys.argv[1]))
