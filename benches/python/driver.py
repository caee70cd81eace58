"""Takes one command a line, answers with one line: `ok`, or the nanoseconds of one unit of work.

Usage: driver.py MESSAGES.jsonl
"""

import json
import statistics
import sys
import threading
from time import perf_counter_ns

from hermes_seed import SessionDB


def load_messages(path):
    messages = []
    with open(path, encoding="utf-8") as lines:
        for line in lines:
            message = json.loads(line)
            for column in ("tool_calls", "reasoning_details"):
                if message[column] is not None:
                    message[column] = json.loads(message[column])
            messages.append(message)
    return messages


class Driver:
    def __init__(self, messages):
        self.messages = messages
        self.stored = 0

    def open(self, synchronous, sessions, messages, path):
        self.path, self.synchronous = path, synchronous
        self.db = SessionDB(path, synchronous)
        self.readers = []
        self.sessions = [
            self.db.create_session(f"00000000-0000-4000-8000-{number:012}", "bench")
            for number in range(int(sessions))
        ]
        # Not measured: neither is the sync.
        self.db._conn.execute("PRAGMA synchronous=OFF")
        for session in self.sessions:
            for number in range(int(messages)):
                self.append_one(session, number)
        self.db._conn.execute(f"PRAGMA synchronous={synchronous}")
        return "ok"

    def append_one(self, session, number):
        self.db.append_message(session, **self.messages[number % len(self.messages)])

    def append(self, count):
        times = []
        for _ in range(int(count)):
            start = perf_counter_ns()
            self.append_one(self.sessions[0], self.stored)
            times.append(perf_counter_ns() - start)
            self.stored += 1
        return statistics.median(times)

    def append_tasks(self, count, tasks):
        # One thread in turn for all: as many threads as tasks were no faster (measured, they all
        # wait for the one lock), and sometimes slower.
        count, tasks = int(count), int(tasks)
        start = perf_counter_ns()
        for number in range(count):
            self.append_one(self.sessions[number % tasks], self.stored + number)
        taken = perf_counter_ns() - start
        self.stored += count
        return taken / count

    def turn(self, count):
        # The original has no turn: five messages are five writes.
        start = perf_counter_ns()
        for _ in range(int(count)):
            for number in range(self.stored, self.stored + 5):
                self.append_one(self.sessions[0], number)
            self.stored += 5
        return (perf_counter_ns() - start) / int(count)

    def load(self, count):
        times = []
        for _ in range(int(count)):
            start = perf_counter_ns()
            conversation = self.db.get_messages_as_conversation(self.sessions[0])
            times.append(perf_counter_ns() - start)
            del conversation
        return statistics.median(times)

    def load_tasks(self, count, tasks, messages):
        count, tasks, messages = int(count), int(tasks), int(messages)
        while len(self.readers) < tasks:
            self.readers.append(SessionDB(self.path, self.synchronous))
        each = count // tasks

        def read(task):
            db = self.readers[task]
            for number in range(task * each, task * each + each):
                session = self.sessions[number % len(self.sessions)]
                if len(db.get_messages_as_conversation(session)) != messages:
                    raise ValueError("a conversation is not complete")

        start = perf_counter_ns()
        in_threads(tasks, read)
        return (perf_counter_ns() - start) / count

    def close(self):
        for reader in self.readers:
            reader.close()
        self.db.close()
        return "ok"


def in_threads(count, work):
    failures = []

    def run(number):
        try:
            work(number)
        except Exception as failure:
            failures.append(failure)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


def main():
    driver = Driver(load_messages(sys.argv[1]))
    for line in sys.stdin:
        name, *arguments = line.rstrip("\n").split(" ", 4 if line.startswith("open ") else -1)
        print(getattr(driver, name)(*arguments), flush=True)


if __name__ == "__main__":
    main()
