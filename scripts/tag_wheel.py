#!/usr/bin/env python3
"""Names a wheel for the oldest glibc that its libraries run with: manylinux_2_36_x86_64 in place of
linux_x86_64, a tag that package indexes refuse, because it names no glibc. Rewrites the wheel under its new
name, removes the old one and prints the new path.

    scripts/tag_wheel.py dist/NAME-VERSION-cp39-abi3-linux_x86_64.whl

The glibc is the newest version of a GLIBC symbol that a library in the wheel asks for; scripts/wheel checks that nothing
but glibc is asked for. It needs objdump."""
import base64
import hashlib
import pathlib
import re
import subprocess
import sys
import tempfile
import zipfile


def glibc_of(wheel):
    """Returns (major, minor)."""
    newest = (2, 17)  # manylinux2014
    with tempfile.TemporaryDirectory() as directory:
        for name in wheel.namelist():
            if name.endswith(".so"):
                symbols = subprocess.run(["objdump", "-T", wheel.extract(name, directory)], capture_output=True, text=True,
                                         check=True).stdout
                for major, minor in re.findall(r"\bGLIBC_(\d+)\.(\d+)", symbols):
                    newest = max(newest, (int(major), int(minor)))
    return newest


def main():
    if len(sys.argv) != 2 or not re.search(r"-linux_\w+\.whl$", sys.argv[1]):
        sys.exit("usage: scripts/tag_wheel.py NAME-VERSION-PYTHON-ABI-linux_ARCHITECTURE.whl")
    path = pathlib.Path(sys.argv[1])
    with zipfile.ZipFile(path) as old:
        tag = "-manylinux_{}_{}_".format(*glibc_of(old))
        new_path = path.with_name(path.name.replace("-linux_", tag))
        with zipfile.ZipFile(new_path, "w", zipfile.ZIP_DEFLATED) as new:
            files = {entry.filename: old.read(entry) for entry in old.infolist()}
            about = next(name for name in files if name.endswith(".dist-info/WHEEL"))
            files[about] = re.sub(rb"(?m)^(Tag: .*)-linux_", rb"\1" + tag.encode(), files[about])
            digest = base64.urlsafe_b64encode(hashlib.sha256(files[about]).digest()).rstrip(b"=").decode()
            record = about.replace("WHEEL", "RECORD")
            line = f"{about},sha256={digest},{len(files[about])}"
            files[record] = re.sub(rf"(?m)^{re.escape(about)},.*$", line, files[record].decode()).encode()
            for entry in old.infolist():
                new.writestr(entry, files[entry.filename], zipfile.ZIP_DEFLATED)
    path.unlink()
    print(new_path)


if __name__ == "__main__":
    main()
