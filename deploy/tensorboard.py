#!/usr/bin/env python3
"""Turns the records of a job into TensorBoard's event files, without the tensorboard package.

  isthmus logs JOB --csv | deploy/tensorboard.py --out runs/JOB          then: tensorboard --logdir runs
  deploy/tensorboard.py --out runs/JOB records.csv
  isthmus logs JOB -f --csv | deploy/tensorboard.py --out runs/JOB       goes on as the job does

Each numeric column but step, unix_ms, generation and committed becomes a scalar of the step it is of: loss, validation_loss,
tokens_per_s, learning_rate, ... An empty field (no validation at that step) gives none. Existing event files stay.
"""
import os
import sys

# This folder must not be searched for modules: it has one that is called as one of the standard library.
sys.path = [p for p in sys.path if os.path.realpath(p or ".") != os.path.dirname(os.path.realpath(__file__))]

import argparse  # noqa: E402
import csv  # noqa: E402
import io  # noqa: E402
import socket  # noqa: E402
import struct  # noqa: E402
import time  # noqa: E402

NOT_SCALARS = {"step", "unix_ms", "generation", "committed"}


def die(message):
    print(f"tensorboard.py: {message}", file=sys.stderr)
    sys.exit(2)


def crc_table():
    table = []
    for value in range(256):
        for _ in range(8):
            value = (value >> 1) ^ (0x82F63B78 if value & 1 else 0)  # CRC-32C, reflected
        table.append(value)
    return table


CRC_TABLE = crc_table()


def masked_crc(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc = CRC_TABLE[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def tf_record(data):
    """TFRecord: length, its checksum, data, its checksum; little endian."""
    length = struct.pack("<Q", len(data))
    return length + struct.pack("<I", masked_crc(length)) + data + struct.pack("<I", masked_crc(data))


def varint(value):
    out = bytearray()
    value &= (1 << 64) - 1
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def field(number, wire, data):
    return varint(number << 3 | wire) + (varint(len(data)) + data if wire == 2 else data)


def event(wall_time, step=None, version=None, scalars=()):
    """A tensorflow.Event: wall_time 1, step 2, file_version 3, summary 5 {value 1 {tag 1, simple_value 2}}."""
    out = field(1, 1, struct.pack("<d", wall_time))
    if step is not None:
        out += field(2, 0, varint(step))
    if version is not None:
        out += field(3, 2, version.encode())
    if scalars:
        values = b"".join(field(1, 2, field(1, 2, tag.encode()) + field(2, 5, struct.pack("<f", value))) for tag, value in scalars)
        out += field(5, 2, values)
    return out


def scalars_of(row):
    out = []
    for name, text in row.items():
        if name in NOT_SCALARS or not text:
            continue
        try:
            out.append((name, float(text)))
        except ValueError:
            pass  # a text
    return out


def open_source(path):
    """The input as text; line ends of any kind. A byte order mark, as editors and spreadsheets put it, is skipped."""
    if path == "-":
        if sys.stdin is None:
            die("standard input is closed; pipe the output of `isthmus logs JOB --csv` in, or name a file")
        return io.TextIOWrapper(sys.stdin.buffer, encoding="utf-8-sig")
    try:
        return open(path, encoding="utf-8-sig")
    except OSError as error:
        die(f"can't read {path}: {error.strerror}; name a file that `isthmus logs JOB --csv` has written, or - for standard input")


def rows_of(source, name):
    """Each row with its line, by the names of its columns. What is no record of a job ends the program."""
    reader = csv.DictReader(source, strict=True)
    try:
        if not {"step", "unix_ms"} <= set(reader.fieldnames or ()):
            die(f"{name} has no columns step and unix_ms: it is no output of `isthmus logs JOB --csv`")
        for row in reader:
            if None in row or None in row.values():
                die(f"{name}, line {reader.line_num}: {'more' if None in row else 'fewer'} fields than the first line names; "
                    "write it again with `isthmus logs JOB --csv`")
            yield reader.line_num, row
    except (UnicodeDecodeError, csv.Error) as error:
        reason = "it is not UTF-8" if isinstance(error, UnicodeDecodeError) else error
        die(f"{name}, near line {reader.line_num + 1}: this is no CSV ({reason}); give it the output of `isthmus logs JOB --csv`")


def record(row, where):
    """A row as a record of the event file."""
    try:
        step, wall = int(row["step"]), int(row["unix_ms"]) / 1000
    except (ValueError, OverflowError):
        die(f"{where}: step and unix_ms must be whole numbers, and are {row['step'][:40]!r} and {row['unix_ms'][:40]!r}")
    if not 0 <= step < 1 << 63:
        die(f"{where}: the step {row['step'][:40]} is out of range")
    try:
        return tf_record(event(wall, step, scalars=scalars_of(row)))
    except (OverflowError, struct.error):
        die(f"{where}: a number is beyond 32 bits, and event files hold no larger ones")


def convert(rows, name, open_out):
    """Writes an event for each row as it comes, to a file that is opened at the first one. Returns how many."""
    out, count = None, 0
    try:
        for line, row in rows:
            data = record(row, f"{name}, line {line}")
            if out is None:
                out = open_out()
                out.write(tf_record(event(time.time(), version="brain.Event:2")))
            out.write(data)
            out.flush()
            count += 1
    except SystemExit:
        if out is not None:  # the corrected input is converted from its beginning
            os.remove(out.name)
        raise
    finally:
        if out is not None:
            out.close()
    return count


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, usage=argparse.SUPPRESS)
    parser.add_argument("csv", nargs="?", default="-")
    parser.add_argument("--out", required=True)
    args = parser.parse_args()
    if os.path.exists(args.out) and not os.path.isdir(args.out):
        die(f"--out {args.out} is a file; name the directory that TensorBoard is given, it may be new")
    name = "standard input" if args.csv == "-" else args.csv
    path = os.path.join(args.out, f"events.out.tfevents.{int(time.time())}.{socket.gethostname()}.{os.getpid()}")

    def open_out():
        os.makedirs(args.out, exist_ok=True)
        return open(path, "xb")
    try:
        with open_source(args.csv) as source:
            count = convert(rows_of(source, name), name, open_out)
    except OSError as error:
        die(f"{error.filename or name}: {error.strerror}")
    except KeyboardInterrupt:
        sys.exit(130)
    if count == 0:
        die(f"{name} has no records: the job has committed no step yet")
    print(f"{path}: {count} steps")


if __name__ == "__main__":
    main()
