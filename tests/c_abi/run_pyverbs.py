"""Runs modules of rdma-core's own tests, each test in a process of its own, and tells how each ended:

    TEST<tab>passed|skipped|failed|died<tab>why

    run_pyverbs.py SOURCE DEVICE GID_INDEX MODULE[.CLASS]...

SOURCE is where the distribution has the tests that it ships with pyverbs. GID_INDEX is -1 where peers are named by
LIDs.
"""

import gzip
import importlib
import os
import random
import shutil
import signal
import sys
import tempfile
import types
import unittest

LIMIT_S = 120


def unpack(source, directory):
    """The distribution compresses the larger files."""
    for name in os.listdir(source):
        path = os.path.join(source, name)
        if name.endswith('.gz'):
            with gzip.open(path) as packed, open(os.path.join(directory, name[:-3]), 'wb') as file:
                shutil.copyfileobj(packed, file)
        elif name.endswith('.py'):
            shutil.copy(path, directory)


def load(directory, modules):
    """The package's own __init__ would load all modules, which takes long."""
    package = types.ModuleType('tests')
    package.__path__ = [directory]
    sys.modules['tests'] = package
    loader = unittest.TestLoader()
    # It and a module for EFAs load each other, which works in this order alone.
    importlib.import_module('tests.utils')
    for name in modules:
        name, _, of_class = name.partition('.')
        module = importlib.import_module('tests.' + name)
        if of_class:
            yield from flat(loader.loadTestsFromTestCase(getattr(module, of_class)))
        else:
            yield from flat(loader.loadTestsFromModule(module))


def flat(suite):
    for test in suite:
        if isinstance(test, unittest.TestSuite):
            yield from flat(test)
        else:
            yield test


def last_line(text):
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1].strip() if lines else ''


def outcome(test):
    result = unittest.TestResult()
    unittest.TestSuite([test]).run(result)
    for bad in result.errors + result.failures:
        return 'failed', last_line(bad[1])
    for _, reason in result.skipped:
        return 'skipped', reason
    return 'passed', ''


def run(test):
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        signal.alarm(LIMIT_S)
        # Tests choose attributes at random: both libraries get the same.
        random.seed(test.id())
        # Some tests print.
        told = os.dup(1)
        os.dup2(2, 1)
        how, why = outcome(test)
        line = '\t'.join([test.id(), how, why.replace('\n', ' ').replace('\t', ' ')]) + '\n'
        os.write(told, line.encode())
        os._exit(0)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        print(f'{test.id()}\tdied\t{signal.Signals(os.WTERMSIG(status)).name}', flush=True)


def main():
    source, device, gid_index, *modules = sys.argv[1:]
    sys.argv = [sys.argv[0], '--dev', device]
    if gid_index != '-1':
        sys.argv += ['--gid', gid_index]
    with tempfile.TemporaryDirectory() as directory:
        unpack(source, directory)
        sys.path.insert(0, directory)
        # The tests look at the arguments when they are made.
        importlib.import_module('args_parser').parser.parse_args()
        for test in list(load(directory, modules)):
            run(test)


main()
