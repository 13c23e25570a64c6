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


def convert(rows, out):
    """Writes an event for each row as it comes. Returns how many."""
    count = 0
    for row in rows:
        if count == 0 and not {"step", "unix_ms"} <= set(row):
            die("the input has no columns step and unix_ms: it is what `isthmus logs JOB --csv` prints")
        try:
            step, wall = int(row["step"]), int(row["unix_ms"]) / 1000
        except (TypeError, ValueError):
            die(f"line {count + 2} is no record: {dict(row)}")
        try:
            out.write(tf_record(event(wall, step, scalars=scalars_of(row))))
        except (OverflowError, struct.error):
            die(f"line {count + 2} has a number beyond 32 bits")
        out.flush()
        count += 1
    return count


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, usage=argparse.SUPPRESS)
    parser.add_argument("csv", nargs="?", default="-")
    parser.add_argument("--out", required=True)
    args = parser.parse_args()
    try:
        source = sys.stdin if args.csv == "-" else open(args.csv, newline="")
        os.makedirs(args.out, exist_ok=True)
        path = os.path.join(args.out, f"events.out.tfevents.{int(time.time())}.{socket.gethostname()}.{os.getpid()}")
        with source, open(path, "wb") as out:
            out.write(tf_record(event(time.time(), version="brain.Event:2")))
            count = convert(csv.DictReader(source), out)
    except OSError as error:
        die(f"{error.filename}: {error.strerror}")
    except KeyboardInterrupt:
        sys.exit(130)
    if count == 0:
        os.remove(path)
        die("there are no records")
    print(f"{path}: {count} steps")


if __name__ == "__main__":
    main()
