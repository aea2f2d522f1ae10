"""The native module and its process: memory, threads, interrupts, verbs in the process, connections. Environment: as for
native_test.py."""
import gc
import os
import shutil
import signal
import struct
import subprocess
import sys
import threading
import time
import unittest
import unittest.mock
from pathlib import Path

import numpy
import safetensors
import safetensors.torch
import torch

import shardctl
from native_case import CHECKPOINT, GOLDEN, PEAK, SOURCE, Case, is_longer


class Costs(Case):
    def test_memory_is_that_of_the_result_and_64_mebibytes(self) -> None:
        script = (f"import sys, numpy, shardctl\n{PEAK}"
                  "with shardctl.open(sys.argv[1]) as found:\n"
                  "    target = numpy.zeros(found['w'].shape, numpy.uint8); target[:] = 1\n"
                  "    before = peak()\n"
                  "    found['w'].read_into(target)\n"
                  "    assert not target.any()\n"
                  "print(peak() - before)\n")
        ended = subprocess.run([sys.executable, "-c", script, self.sparse(256)], check=True, capture_output=True, text=True)
        self.assertLess(int(ended.stdout), 64 * 1024)

    def test_ten_thousand_opens_leak_nothing(self) -> None:
        path = self.saved({"w": torch.zeros(16)})
        peaks = []
        for count in (1000, 9000):
            for _ in range(count):
                found = shardctl.open(path)
                found["w"].numpy()
                found.objects
            del found
            gc.collect()
            peaks.append((len(os.listdir("/proc/self/fd")), int(Path("/proc/self/statm").read_text().split()[1]) * 4))
        self.assertEqual(peaks[0][0], peaks[1][0])
        self.assertLess(peaks[1][1] - peaks[0][1], 4096, "KiB")

    def test_the_module_is_imported_in_30_milliseconds(self) -> None:
        script = "import time; begin = time.process_time(); import shardctl; print(time.process_time() - begin)"
        runs = [float(subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True).stdout)
                for _ in range(5)]
        self.assertLess(min(runs), 0.03)

    def test_a_million_names_are_listed_in_a_second(self) -> None:
        path, names = self.folder / "many.safetensors", 1_000_000
        header = "{" + ",".join(f'"model.layers.{i}.weight":{{"dtype":"U8","shape":[1],"data_offsets":[{i},{i + 1}]}}'
                                for i in range(names)) + "}"
        path.write_bytes(struct.pack("<Q", len(header)) + header.encode() + bytes(names))
        script = (f"import sys, time, shardctl\n{PEAK}"
                  "found = shardctl.open(sys.argv[1])\n"
                  "begin = time.process_time(); count = len(list(found.keys()))\n"
                  "print(count, time.process_time() - begin, peak())\n")
        ended = subprocess.run([sys.executable, "-c", script, path], check=True, capture_output=True, text=True)
        count, seconds, kib = ended.stdout.split()
        self.assertEqual(int(count), names)
        self.assertFalse(is_longer(float(seconds), 1), seconds)
        self.assertLess(int(kib), 400 * 1024)


class Threads(Case):
    def test_reading_releases_the_lock_of_the_interpreter(self) -> None:
        ticks, done = [], threading.Event()

        def tick() -> None:
            while not done.is_set():
                ticks.append(time.monotonic())
                time.sleep(0.001)

        with shardctl.open(self.sparse(256), threads=1) as found:
            target = numpy.empty(found["w"].shape, numpy.uint8)
            thread = threading.Thread(target=tick)
            thread.start()
            begin = time.monotonic()
            found["w"].read_into(target)
            end = time.monotonic()
            done.set()
            thread.join()
        self.assertGreater(len([each for each in ticks if begin < each < end]), 3)

    def test_threads_share_a_checkpoint(self) -> None:
        with shardctl.open(GOLDEN / "dcp_threads_r2") as found:
            whole = {name: found[name].torch() for name in found}
        failures = []
        with shardctl.open(GOLDEN / "dcp_threads_r2") as found:
            def read() -> None:
                for name, tensor in whole.items():
                    if not torch.equal(found[name].torch(), tensor):
                        failures.append(name)
            threads = [threading.Thread(target=read) for _ in range(8)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        self.assertEqual(failures, [])

    def test_a_process_ends_quietly_while_a_thread_has_a_checkpoint(self) -> None:
        script = ("import sys, threading, shardctl\n"
                  "opened = threading.Event()\n"
                  "def work(found):\n"
                  "    opened.set(); threading.Event().wait()\n"
                  "threading.Thread(target=work, args=[shardctl.open(sys.argv[1])], daemon=True).start()\n"
                  "opened.wait()\n")
        ended = subprocess.run([sys.executable, "-c", script, CHECKPOINT], capture_output=True, text=True)
        self.assertEqual((ended.returncode, ended.stdout, ended.stderr), (0, "", ""))

    def test_a_process_ends_quietly_while_a_thread_reads(self) -> None:
        script = ("import sys, threading, shardctl\n"
                  "found, begun = shardctl.open(sys.argv[1]), threading.Event()\n"
                  "def work(handle):\n"
                  "    while True:\n"
                  "        handle.read_into(bytearray(handle.nbytes)); shardctl.open(sys.argv[1]); begun.set()\n"
                  "for handle in found.values():\n"
                  "    threading.Thread(target=work, args=[handle], daemon=True).start()\n"
                  "begun.wait()\n")
        for _ in range(3):
            ended = subprocess.run([sys.executable, "-c", script, CHECKPOINT], capture_output=True, text=True)
            self.assertEqual((ended.returncode, ended.stdout, ended.stderr), (0, "", ""))

    def test_a_process_ends_quietly_while_a_thread_reports_progress(self) -> None:
        script = ("import sys, threading, time, shardctl\n"
                  "class Late:\n"
                  "    sleep = staticmethod(time.sleep)\n"
                  "    def __del__(self): self.sleep(0.3)\n"
                  "late, begun = Late(), threading.Event()\n"
                  "def report(progress):\n"
                  "    begun.set()\n"
                  "    while True: time.sleep(0.001)\n"
                  "work = dict(target=shardctl.verify, args=[sys.argv[1]], kwargs=dict(progress=report), daemon=True)\n"
                  "threading.Thread(**work).start()\n"
                  "begun.wait()\n")
        ended = subprocess.run([sys.executable, "-c", script, CHECKPOINT], capture_output=True, text=True)
        self.assertEqual((ended.returncode, ended.stderr), (0, ""))

    def test_an_interrupt_stops_it_within_100_milliseconds(self) -> None:
        with shardctl.open(self.sparse(2048), threads=1) as found:
            target = numpy.empty(found["w"].shape, numpy.uint8)
            self.interrupted(lambda: found["w"].read_into(target))
            self.assertEqual(found["w"][0, :4].numpy().tolist(), [0, 0, 0, 0])


class Verbs(Case):
    """The verbs in this process: no program is started."""

    def setUp(self) -> None:
        super().setUp()
        self.program = os.environ["SHARDCTL"]
        self.enterContext(unittest.mock.patch.dict(os.environ))
        del os.environ["SHARDCTL"]

    def started(self) -> unittest.mock._patch:
        return unittest.mock.patch("subprocess.Popen", side_effect=AssertionError("a program was started"))

    def test_their_documents_are_those_of_the_program(self) -> None:
        shardctl.run("gather", CHECKPOINT, "-o", self.folder / "x.pt")
        calls = (lambda: shardctl.inspect(CHECKPOINT, include=["model.**"]), lambda: shardctl.digest(CHECKPOINT),
                 lambda: shardctl.diff(CHECKPOINT, GOLDEN / "model.pt"), lambda: shardctl.verify(self.folder / "x.pt"),
                 lambda: shardctl.run("split", CHECKPOINT, "-o", self.folder / "y", "--ranks", "2", dry_run=True),
                 lambda: shardctl.run("cat", CHECKPOINT, "step"))
        for index, call in enumerate(calls):
            with self.started():
                own = call()
            with unittest.mock.patch.dict(os.environ, {"SHARDCTL": self.program}):
                wanted = call()
            for each in (own, wanted):
                each.json.pop("free_bytes", None)  # The disk has other users.
            self.assertEqual(own.json, wanted.json, index)
            self.assertIs(type(own), type(wanted))

    def test_errors_have_a_class_and_facts(self) -> None:
        path = self.saved({"w": torch.zeros(64)})
        with self.started():
            with self.assertRaises(shardctl.Exists) as exists:
                shardctl.run("convert", CHECKPOINT, "-o", path, "--objects", "drop")
            self.assertEqual((exists.exception.file, exists.exception.hint), (str(path), "add --force to replace it"))
            with self.assertRaises(shardctl.Usage) as unknown:
                shardctl.run("inspect", path, "--nothing")
            self.assertIn("--nothing", unknown.exception.message)
            os.truncate(path, path.stat().st_size - 8)
            with self.assertRaises(shardctl.Corruption) as cut:
                shardctl.inspect(path)
            self.assertEqual(cut.exception.kind, "truncated")
            for arguments in (("completion", "bash"), ("help",)):
                self.assertEqual(shardctl.run(*arguments).schema, f"shardctl.{arguments[0]}/1")

    def test_the_process_stays_as_it_is(self) -> None:
        def state() -> list[object]:
            handlers = [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM, signal.SIGPIPE)]
            return [handlers, signal.pthread_sigmask(signal.SIG_BLOCK, []), os.getcwd(), dict(os.environ), threading.active_count(),
                    len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))]

        launched = {"RANK": "1", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
        with self.started(), unittest.mock.patch.dict(os.environ, launched):
            shardctl.digest(CHECKPOINT)
            before = state()
            threads = [threading.Thread(target=shardctl.digest, args=(CHECKPOINT,)) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            shardctl.run("gather", CHECKPOINT, "-o", self.folder / "x.pt", "--local-ranks", "2")
            self.assertEqual(state(), before)

    def test_progress_is_reported_and_may_stop_it(self) -> None:
        found: list[shardctl.Progress] = []
        with self.started():
            shardctl.run("gather", CHECKPOINT, "-o", self.folder / "x.pt", progress=found.append)
            self.assertEqual(found[-1].bytes_done, found[-1].bytes_total)
            self.assertGreater(found[-1].bytes_done, 0)

            def stop(_: shardctl.Progress) -> None:
                raise ZeroDivisionError

            with self.assertRaises(ZeroDivisionError):
                shardctl.digest(CHECKPOINT, progress=stop)

    def test_an_interrupt_stops_it_within_100_milliseconds(self) -> None:
        path = self.sparse(4096)
        with self.started():
            self.interrupted(lambda: shardctl.digest(path, algorithm="sha256", options=["--threads=1"]))
            self.interrupted(lambda: shardctl.run("convert", path, "-o", self.folder / "x.pt", "--threads", "1"),
                             seconds=0.5)  # Includes the removal of the written file.
        self.assertEqual([each.name for each in self.folder.iterdir()], [path.name])

    def test_another_folder_or_environment_needs_the_program(self) -> None:
        with self.started(), self.assertRaises(shardctl.ProgramNotFound):
            shardctl.run("inspect", CHECKPOINT, cwd=self.folder)


class Urls(Case):
    def setUp(self) -> None:
        super().setUp()
        self.enterContext(unittest.mock.patch.object(sys, "path", [*sys.path, str(SOURCE / "tests/stores")]))
        import server

        self.bucket = self.folder / "s3/bucket"
        shutil.copytree(CHECKPOINT, self.bucket / "ckpt")
        self.served = self.enterContext(server.Server(self.folder))
        variables = {"AWS_ACCESS_KEY_ID": server.KEY_ID, "AWS_SECRET_ACCESS_KEY": server.SECRET, "AWS_EC2_METADATA_DISABLED": "true",
                     "HOME": str(self.folder)}
        self.enterContext(unittest.mock.patch.dict(os.environ, variables))

    def opened(self, name: str) -> shardctl.Checkpoint:
        found = shardctl.open(f"s3://bucket/{name}", endpoint_url=self.served.url, connections=4)
        self.addCleanup(found.close)
        return found

    def test_they_are_read_like_paths(self) -> None:
        found = self.opened("ckpt")
        with shardctl.open(CHECKPOINT) as local:
            self.assertEqual((list(found), found.objects), (list(local), local.objects))
            for name in local:
                self.assertTrue(torch.equal(found[name].torch(), local[name].torch()), name)

    def test_a_slice_needs_one_request(self) -> None:
        safetensors.torch.save_file({"w": torch.randn(256, 100, 100)}, self.bucket / "x.safetensors")
        found = self.opened("x.safetensors")
        self.served.reset()
        with safetensors.safe_open(self.bucket / "x.safetensors", "pt") as client:
            self.assertTrue(torch.equal(found["w"][200].torch(), client.get_slice("w")[200]))
        self.assertEqual(len(self.served.log), 1, self.served.log)

    def test_an_interrupt_ends_a_request(self) -> None:
        found = self.opened("ckpt")
        self.served.latency = 5
        self.interrupted(lambda: self.opened("ckpt"))
        self.interrupted(lambda: found["model.embed.weight"].torch())
        self.served.latency = 0
        self.assertEqual(found["model.norm.weight"].torch().shape, (16,))

    def test_a_missing_one_is_not_found(self) -> None:
        with self.assertRaises(shardctl.NotFound) as absent:
            self.opened("none")
        self.assertEqual(absent.exception.file, "s3://bucket/none")


if __name__ == "__main__":
    unittest.main()
