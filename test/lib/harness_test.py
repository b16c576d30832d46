#!/usr/bin/env python3
"""The common parts of the rigs: waiting ends with the value, with Failed, or with the error of a check in between."""

import pathlib
import socket
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from harness import Failed, free_port, wait_for


class Waiting(unittest.TestCase):
    def test_returns_the_first_true_value(self):
        values = iter([0, None, "seen"])
        self.assertEqual(wait_for("a value", lambda: next(values), pause=0), "seen")

    def test_fails_with_the_subject_and_the_time(self):
        with self.assertRaisesRegex(Failed, "not seen within 0.05 s: rain"):
            wait_for("rain", lambda: False, seconds=0.05, pause=0.01)

    def test_ignores_only_the_named_exceptions(self):
        answers = [OSError, OSError, 7]

        def condition():
            answer = answers.pop(0)
            if answer is OSError:
                raise OSError
            return answer

        self.assertEqual(wait_for("an answer", condition, pause=0, ignored=OSError), 7)
        with self.assertRaises(ZeroDivisionError):
            wait_for("nothing", lambda: 1 / 0, ignored=OSError)

    def test_a_check_between_the_tries_may_end_it(self):
        def ended():
            raise Failed("the daemon has ended")

        with self.assertRaisesRegex(Failed, "the daemon has ended"):
            wait_for("its port", lambda: False, while_waiting=ended)


class Ports(unittest.TestCase):
    def test_a_free_port_can_be_bound(self):
        port = free_port()
        self.assertTrue(15000 <= port < 32000)
        with socket.socket() as s:
            s.bind(("127.0.0.1", port))


if __name__ == "__main__":
    unittest.main()
