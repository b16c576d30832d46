"""An image of this machine's Python: the interpreter and the libraries that it and PyTorch load, no packages.

The packages come by read-only volumes: `volumes()` names the folders. Nothing is compiled or fetched.
"""

import os
import pathlib
import shutil
import subprocess
import sys
import sysconfig
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
NAME = "sluice.test/host:1"
LIBRARIES = ("/lib/x86_64-linux-gnu/", "/usr/lib/x86_64-linux-gnu/", "/lib64/")


def volumes():
    """Name: (folder on the machine, folder in the pod)."""
    found = {"workloads": (str(HERE / "workloads"), "/workloads"), "stdlib": (sysconfig.get_path("stdlib"),) * 2}
    if sys.prefix != sys.base_prefix:
        top = pathlib.Path(sys.prefix).parent
        found["packages"] = (str(top), str(top))
    else:
        found["packages"] = (sysconfig.get_path("purelib"),) * 2
    return found


def loaded(files):
    """The libraries of the machine's own folders that the files name, without the driver's."""
    wanted = set()
    for at in range(0, len(files), 200):
        output = subprocess.run(["ldd", *files[at : at + 200]], capture_output=True, text=True, check=False).stdout
        wanted.update(w for w in output.split() if w.startswith(LIBRARIES) and "nvidia" not in w and "libcuda" not in w)
    return sorted(wanted)


def make(out):
    interpreter = os.path.realpath(sys.executable)
    files = [interpreter, "/usr/bin/env", "/bin/sleep"]
    stdlib = pathlib.Path(sysconfig.get_path("stdlib"))
    files += map(str, (stdlib / "lib-dynload").glob("*.so"))
    packages = pathlib.Path(sysconfig.get_path("purelib"))
    for folder in ("torch/lib", "numpy", "numpy.libs", "triton/_C"):
        files += map(str, (packages / folder).rglob("*.so*"))
    with tempfile.TemporaryDirectory(dir="/var/tmp") as root:
        root = pathlib.Path(root)
        for folder in (
            "usr/bin",
            "usr/lib/x86_64-linux-gnu",
            "usr/lib64",
            "usr/sbin",
            "etc",
            "tmp",
            "proc",
            "dev",
            "sys",
        ):
            (root / folder).mkdir(parents=True)
        for name in ("bin", "lib", "lib64", "sbin"):
            (root / name).symlink_to("usr/" + name)
        (root / "tmp").chmod(0o1777)
        for program in (interpreter, "/usr/bin/env", "/bin/sleep"):
            shutil.copy2(program, root / "usr" / "bin" / os.path.basename(program))
        for name in ("python", "python3"):
            (root / "usr/bin" / name).symlink_to(os.path.basename(interpreter))
        for library in loaded(files):
            target = root / ("usr" + library if not library.startswith("/usr") else library[1:])
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(library, target)
        for _, inside in volumes().values():
            (root / inside.lstrip("/")).mkdir(parents=True, exist_ok=True)
        (root / "etc" / "passwd").write_text("root:x:0:0::/:/\nuser:x:12345:12345::/tmp:/\n")
        subprocess.run([HERE.parent / "cluster" / "oci_archive", NAME, root, out, "/usr/bin/env"], check=True)
