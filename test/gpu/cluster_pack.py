"""The pack of test/gpu/cluster: one archive with all that a bare machine lacks."""

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

import pack_parts

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
CLUSTER = ROOT / "test" / "cluster"
VERSION = (ROOT / "VERSION").read_text().strip()
LARGEST = 48 << 20  # beside the tree itself, in one call
# Programs of the node that are not built from Go modules: Debian's.
DEBIAN = ["/usr/sbin/runc", "/usr/lib/cni/bridge", "/usr/lib/cni/host-local", "/usr/lib/cni/loopback"]
MUSL_PROGRAM = r"""
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>
int main(void) {
  const char* preload = getenv("LD_PRELOAD");
  if (fork() == 0) execl("/bin/plain", "/bin/plain", NULL);
  int status = 0;
  if (getenv("CHILD") == NULL) wait(&status);
  printf("musl: works, preload %s\n", preload ? preload : "none");
  return WEXITSTATUS(status);
}
"""
PLAIN_PROGRAM = '#include <stdio.h>\nint main(void) { puts("child: works"); return 0; }\n'


def run(*command, **more):
    return subprocess.run([str(c) for c in command], check=True, text=True, **more)


def programs(to):
    """Hard links of the one build: it is packed once."""
    built = pathlib.Path(run(CLUSTER / "tools" / "build", stdout=subprocess.PIPE).stdout.strip())
    names = run(CLUSTER / "tools" / "build", "--programs", stdout=subprocess.PIPE).stdout.split()
    copies = {}
    to.mkdir()
    for name in names:
        inode = (built / name).stat().st_ino
        if inode in copies:
            os.link(copies[inode], to / name)
        elif name != "kwok":
            copies[inode] = shutil.copy2(built / name, to / name)
    for path in DEBIAN:
        run("strip", "-o", to / os.path.basename(path), path)


def with_libraries(root, *programs_, at="/app/bin"):
    """Programs and the libraries that they load, with their paths."""
    for program in programs_:
        target = root / at.lstrip("/") / program.name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(program, target)
        run("strip", target)
        for word in run("ldd", program, stdout=subprocess.PIPE).stdout.split():
            if word.startswith("/"):
                (root / word.lstrip("/")).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(word, root / word.lstrip("/"))
    for name in ("libdl.so.2", "libpthread.so.0", "librt.so.1", "libm.so.6"):
        for folder in ("lib/x86_64-linux-gnu", "lib64"):
            if (pathlib.Path("/") / folder / name).exists() and (root / folder).exists():
                shutil.copy(pathlib.Path("/") / folder / name, root / folder / name)
    (root / "tmp").mkdir(exist_ok=True)
    (root / "tmp").chmod(0o1777)


def musl_image(out):
    """As Alpine's programs: the loader and the C library of musl, and nothing of glibc."""
    loader = pathlib.Path("/lib/ld-musl-x86_64.so.1")
    with tempfile.TemporaryDirectory() as root:
        root = pathlib.Path(root)
        for folder in ("bin", "lib", "etc"):
            (root / folder).mkdir()
        for name, text in (("app", MUSL_PROGRAM), ("plain", PLAIN_PROGRAM)):
            run("musl-gcc", "-O2", "-s", "-x", "c", "-", "-o", root / "bin" / name, input=text)
        shutil.copy(loader, root / "lib" / loader.name)
        (root / "etc" / "passwd").write_text("user:x:1000:1000::/:/\n")
        run(CLUSTER / "oci_archive", "sluice.test/musl:1", root, out, "/bin/app")


def tenant_image(build, out):
    with tempfile.TemporaryDirectory() as root:
        with_libraries(pathlib.Path(root), build / "bin" / "tenant")
        run(CLUSTER / "oci_archive", "sluice.test/tenant:1", root, out, "/app/bin/tenant")


def fill(build, work):
    programs(work / "programs")
    images = work / "images"
    images.mkdir()
    script = 'for f in settings daemons; do . "$1/lib/$f.sh"; done; pause_image && cp "$PAUSE_ARCHIVE" "$2/pause.tar"'
    run("bash", "-c", script, "-", CLUSTER, images)
    name = f"sluice.test/sluice:{VERSION}"
    compressed = work / "sluice.tar"
    run(ROOT / "scripts" / "image", "--built", build, "--name", name, compressed)
    # Without the layers' own compression: the pack's, over all of it, is better.
    to = f"docker-archive:{images}/sluice.tar:{name}"
    run("skopeo", "--insecure-policy", "copy", "-q", f"oci-archive:{compressed}", to)
    compressed.unlink()
    musl_image(images / "musl.tar")
    tenant_image(build, images / "tenant.tar")
    # The programs of `sluice run` and `kubectl sluice` on the machine itself.
    run(HERE / "tenants", "--build", build, "--pack", work / "host")
    os.symlink("sluice", work / "host" / "bin" / "kubectl-sluice")


def make(build, folder, packed=True):
    """`packed`: one archive. Else the files themselves, for this machine."""
    folder.mkdir(parents=True, exist_ok=True)
    if not packed:
        for name in ("programs", "images", "host"):
            shutil.rmtree(folder / name, ignore_errors=True)
        return fill(build, folder)
    archive = folder / "cluster.tar.xz"
    # The dictionary spans the archive: the same programs lie in the image and in host/.
    packer = ["-I", "xz -T1 --x86 --lzma2=preset=6,dict=256MiB"]
    with tempfile.TemporaryDirectory(dir="/var/tmp") as work:
        fill(build, pathlib.Path(work))
        run("tar", "--sort=name", "--owner=0", "--group=0", "-C", work, "-cf", archive, *packer, ".")
    print(f"{archive}: {archive.stat().st_size / (1 << 20):.1f} MiB", file=sys.stderr)
    for part in pack_parts.split(archive, LARGEST):
        print(f"{part}: a part, to be carried by a call of its own; all but the last with --keep", file=sys.stderr)
    return None
