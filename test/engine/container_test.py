"""A container's view is its share, and its limits hold for its processes together: real processes of one allocation,
a real agent. container_test.py BUILD [NAME...] | --list"""

import json
import struct
import subprocess
import sys
import tempfile
import time

from engine_node import OUT_OF_MEMORY, Process, node
from engine_rig import GIB, MIB, built, environment, expect, gpu_uuid, main, scenarios_program, skip_if_sanitized, test
from played_agent import Agent as PlayedAgent
from played_agent import budget_frame, memory_frame, welcome

# As nvidia-smi, nvitop, gpustat and DCGM do: NVML by dlopen, no call of CUDA.
LOOK = """
import ctypes, json, sys
class V1(ctypes.Structure):
    _fields_ = [(n, ctypes.c_ulonglong) for n in ("total", "free", "used")]
class V2(ctypes.Structure):
    _fields_ = [("version", ctypes.c_uint)] + [(n, ctypes.c_ulonglong) for n in ("total", "reserved", "free", "used")]
class Bar1(ctypes.Structure):
    _fields_ = [(n, ctypes.c_ulonglong) for n in ("total", "free", "used")]
class Process(ctypes.Structure):
    _fields_ = [("pid", ctypes.c_uint), ("bytes", ctypes.c_ulonglong), ("gi", ctypes.c_uint), ("ci", ctypes.c_uint)]
class Rates(ctypes.Structure):
    _fields_ = [("gpu", ctypes.c_uint), ("memory", ctypes.c_uint)]
nvml = ctypes.CDLL("libnvidia-ml.so.1")
def ok(result):
    assert result == 0, result
ok(nvml.nvmlInitWithFlags(0))
device = ctypes.c_void_p()
ok(nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(device)))
def look():
    v1, v2, bar1, rates = V1(), V2(version=ctypes.sizeof(V2) | 2 << 24), Bar1(), Rates()
    ok(nvml.nvmlDeviceGetMemoryInfo(device, ctypes.byref(v1)))
    ok(nvml.nvmlDeviceGetMemoryInfo_v2(device, ctypes.byref(v2)))
    ok(nvml.nvmlDeviceGetBAR1MemoryInfo(device, ctypes.byref(bar1)))
    ok(nvml.nvmlDeviceGetUtilizationRates(device, ctypes.byref(rates)))
    count = ctypes.c_uint(16)
    processes = (Process * 16)()
    ok(nvml.nvmlDeviceGetComputeRunningProcesses_v3(device, ctypes.byref(count), processes))
    listed = {processes[i].pid: processes[i].bytes for i in range(count.value)}
    assert v1.total == v1.used + v1.free and v2.total == v2.used + v2.free + v2.reserved, "sums"
    assert (v1.total, v1.used) == (v2.total, v2.used), "versions"
    print(json.dumps({"total": v1.total, "used": v1.used, "processes": listed, "gpu": rates.gpu,
                      "bar1": bar1.total}), flush=True)
look()
for line in sys.stdin:
    look()
"""


def make_looker(n, name):
    made = Process([sys.executable, "-c", LOOK], n.env(name))
    n.processes.append(made)
    return made


@test
def limit_of_three_processes():
    with node() as n:
        n.allocate("one", gpu_memory="2Gi", memory_limit="3Gi")
        n.allocate("other", gpu_memory="2Gi", memory_limit="4Gi")
        one, two, three, other = n.process("one"), n.process("one"), n.process("one"), n.process("other")
        expect(one.memory() == [2048, 2048, 2048], "nothing is used", str(one.memory()))
        expect(one.fill(256) == 3072, "the first process gets the whole limit")
        expect(two.memory() == [0, 2048, 2048], "the others are told what is left", str(two.memory()))
        expect(two.fill(256) == 0 and three.fill(1) == 0, "and get nothing")
        for _ in range(6):
            one("free")
        expect(three.memory()[0] == 512, "free bytes are the container's", str(three.memory()))
        expect(two.fill(128) == 1536, "what one frees another may have")
        expect(other.memory() == [2048, 2048, 2048], "another container sees nothing of it", str(other.memory()))
        expect(other.fill(256) == 4096, "and has a limit of its own")
        one.kill()
        begin = time.monotonic()
        while three("allocate 1536") != "ok":
            expect(time.monotonic() < begin + 2, "a killed process's bytes return at once")
            time.sleep(0.01)
        expect(two.fill(64) == 0 and three.fill(64) == 0, "and no more than those")
        expect(n.process("one").memory()[0] == 0, "a process that starts then is told so")


@test
def limit_while_the_agent_is_away():
    with node() as n:
        n.allocate("one", gpu_memory="2Gi", memory_limit="3Gi")
        one, two = n.process("one"), n.process("one")
        for process in (one, two):
            expect(process("allocate 512") == "ok", "within the limit")
        n.kill_agent()
        time.sleep(0.1)
        one_got, two_got = one.fill(128), two.fill(128)
        expect(one_got + two_got <= 2048, "no more than the limit without the agent", f"{one_got} {two_got}")
        expect(one_got + two_got > 0, "what was granted stays", f"{one_got} {two_got}")
        one("free")
        expect(one("allocate 128") == "ok", "what a process frees it may allocate again")
        n.start()
        end = time.monotonic() + 20
        while one_got + two_got < 2048:
            two_got += two.fill(128)
            late = time.monotonic() > end and one_got + two_got < 2048
            expect(not late, "the new agent gives the rest of the limit", f"{one_got} {two_got}")
        expect(one_got + two_got == 2048, "and no more", f"{one_got} {two_got}")
        three = n.process("one")
        got = three.fill(64)
        expect(got == 0, "a process that starts then finds the limit reached", str(got))
        two.kill()
        time.sleep(0.2)
        expect(three.fill(128) == 512 + two_got, "and has what the killed one had")


@test
def nvml_in_a_process_without_a_context():
    skip_if_sanitized("the shim answers NVML's functions")
    with node() as n:
        n.allocate("one", gpu_memory="2Gi", memory_limit="3Gi")
        n.allocate("other", gpu_memory="2Gi")
        one, two, other = n.process("one"), n.process("one"), n.process("other")
        one("allocate 1024"), two("allocate 128"), other("allocate 700")
        looker = make_looker(n, "one")
        seen = json.loads(looker.first)
        held = {str(one.p.pid): 1024 * MIB, str(two.p.pid): 128 * MIB}
        expect(seen["total"] == 2 * GIB, "the share is shown from the first call on", str(seen))
        expect(seen["used"] == 1152 * MIB, "used is the container's", str(seen))
        expect(seen["processes"] == held, "the container's processes with their bytes", str(seen))
        expect(seen["bar1"] == 1 << 38, "BAR1 is the card's", str(seen))
        expect(one.memory()[0] == 896, "CUDA agrees", str(one.memory()))
        two.kill()
        end = time.monotonic() + 5
        while (seen := json.loads(looker("look")))["used"] != 1024 * MIB:
            expect(time.monotonic() < end, "a process that ended is not counted", str(seen))
        expect(list(seen["processes"]) == [str(one.p.pid)], "nor listed", str(seen))
        beside = json.loads(make_looker(n, "other").first)
        expect(beside["used"] == 700 * MIB and len(beside["processes"]) == 1, "the other container's own", str(beside))
        status = [built("bin", "sluice"), "status", "--run-dir", n.folder / "run", "-o", "json"]
        told = json.loads(subprocess.run(status, capture_output=True, text=True).stdout)
        processes = {a["id"]: len(a.get("processes", [])) for a in told["allocations"]}
        expect(processes == {"one": 1, "other": 1}, "a process that looks is none of the container", str(processes))


@test
def nvml_utilisation_is_the_containers():
    skip_if_sanitized("the shim answers NVML's functions")
    with node() as n:
        n.allocate("one", gpu_memory="2Gi")
        n.allocate("other", gpu_memory="2Gi")
        one = n.process("one")
        one("allocate 64")
        mine, beside = make_looker(n, "one"), make_looker(n, "other")
        end, shown = time.monotonic() + 20, 0
        while shown == 0:
            one("launch 20")
            shown = json.loads(mine("look"))["gpu"]
            expect(time.monotonic() < end, "kernels of the container show")
        expect(shown <= 100, "as a percentage", str(shown))
        seen = json.loads(beside("look"))
        expect(seen["gpu"] == 0, "and not in another container", str(seen))


@test
def nvml_while_the_agent_is_away():
    """The last figures are not known: the environment's size, and the driver's count of this container's processes."""
    skip_if_sanitized("the shim answers NVML's functions")
    with node() as n:
        n.allocate("one", gpu_memory="2Gi")
        n.process("one")
        looker = make_looker(n, "one")
        n.kill_agent()
        seen = json.loads(looker("look"))
        expect(seen["total"] == 2 * GIB and seen["used"] < 200 * MIB, "the share is shown all the same", str(seen))
        n.start()
        time.sleep(1.2)
        end = time.monotonic() + 10
        n.processes[0]("allocate 512")
        while json.loads(looker("look"))["used"] != 512 * MIB:
            expect(time.monotonic() < end, "a new agent is found")
            time.sleep(0.05)


@test
def nvml_beside_an_older_agent():
    """It takes the process for one that uses the GPU: the connection is short, and rare."""
    skip_if_sanitized("the shim answers NVML's functions")
    uuid, hellos = gpu_uuid(), []

    def talk(peer):
        welcome(peer)
        hellos.append(1)
        peer.send(budget_frame(uuid, GIB, 3 * GIB, 0, 5))
        rest = peer.recv(256)
        expect(rest == b"", "nothing that it does not know is sent", repr(rest))

    with tempfile.TemporaryDirectory(prefix="slc-") as folder:
        PlayedAgent(f"{folder}/agent.sock", talk)
        env = environment(2 * GIB, more={"SLUICE_SOCKET": f"{folder}/agent.sock"})
        looker = Process([sys.executable, "-c", LOOK], env)
        seen = [json.loads(looker.first)] + [json.loads(looker("look")) for _ in range(5)]
        looker.kill()
    expect(all(s["total"] == 3 * GIB for s in seen), "the older agent's size", str(seen))
    expect(len(hellos) == 1, "one connection", str(hellos))


@test
def lease_by_frames():
    """An allocation within the lease asks nothing; a request that is not answered ends in out of memory."""
    uuid, requests = gpu_uuid(), []

    def talk(peer):
        welcome(peer, minor=1)
        peer.send(budget_frame(uuid, 2 * GIB, 2 * GIB, 1 << 40, 5, granted=512 * MIB))
        while frame := peer.recv(256):
            kind, (name, number, missing) = frame[6], struct.unpack_from("<48sQQ", frame, 16)
            if kind != 12:
                continue
            requests.append(missing)
            granted = {1: 768 * MIB, 2: 768 * MIB}.get(len(requests))
            if granted:
                peer.send(memory_frame(name, number, granted, 2 * GIB, 2))

    with tempfile.TemporaryDirectory(prefix="slc-") as folder:
        PlayedAgent(f"{folder}/agent.sock", talk)
        process = Process(
            [scenarios_program(), "led_by_commands"],
            environment(2 * GIB, more={"SLUICE_SOCKET": f"{folder}/agent.sock"}),
        )
        expect([process("allocate 128") for _ in range(4)] == ["ok"] * 4, "within the lease")
        expect(requests == [], "nothing is asked", str(requests))
        expect(process("allocate 256") == "ok", "the agent gives 256 MiB more")
        expect(requests == [256 * MIB], "what is missing is asked for", str(requests))
        expect(process("allocate 64") == OUT_OF_MEMORY, "the agent gives no more")
        begin = time.monotonic()
        expect(process("allocate 64") == OUT_OF_MEMORY, "no answer")
        expect(time.monotonic() < begin + 10, "the wait is bounded")
        process.kill()


if __name__ == "__main__":
    sys.exit(main())
