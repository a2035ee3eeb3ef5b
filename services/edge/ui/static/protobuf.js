// Protocol Buffers, as far as the frames of chats need them. Pure.
// The encoding is that of the page "Encoding" of its own documentation.

const VARINT = 0;
const I64 = 1;
const LEN = 2;
const I32 = 5;
const UTF8 = new TextEncoder();
const TEXT = new TextDecoder("utf-8", { fatal: true });

/** A number of up to 53 bits, seven bits to a byte, the lowest first. */
export function varint(value) {
  const bytes = [];
  for (; value >= 0x80; value = Math.floor(value / 0x80)) bytes.push((value % 0x80) | 0x80);
  bytes.push(value);
  return bytes;
}

export function join(parts) {
  const whole = new Uint8Array(parts.reduce((sum, it) => sum + it.length, 0));
  let at = 0;
  for (const part of parts) {
    whole.set(part, at);
    at += part.length;
  }
  return whole;
}

/** Builds a message. Fields of `undefined` are left out. */
export class Writer {
  #parts = [];

  uint(field, value) {
    if (value !== undefined) this.#parts.push(varint(field * 8 + VARINT), varint(value));
    return this;
  }

  bool(field, value) {
    return this.uint(field, value ? 1 : undefined);
  }

  double(field, value) {
    if (value === undefined) return this;
    const bytes = new Uint8Array(8);
    new DataView(bytes.buffer).setFloat64(0, value, true);
    this.#parts.push(varint(field * 8 + I64), bytes);
    return this;
  }

  fixed64(field, value) {
    if (value === undefined) return this;
    const bytes = new Uint8Array(8);
    new DataView(bytes.buffer).setBigUint64(0, BigInt(value), true);
    this.#parts.push(varint(field * 8 + I64), bytes);
    return this;
  }

  bytes(field, value) {
    if (value === undefined) return this;
    this.#parts.push(varint(field * 8 + LEN), varint(value.length), value);
    return this;
  }

  text(field, value) {
    return this.bytes(field, value ? UTF8.encode(value) : undefined);
  }

  message(field, writer) {
    return this.bytes(field, writer?.finish());
  }

  packed(field, values) {
    return this.bytes(field, values.length ? join(values.map(varint)) : undefined);
  }

  finish() {
    return join(this.#parts);
  }
}

/** The fields of a message: [number, value]. Numbers are numbers, all else is bytes. */
export function* fields(bytes) {
  const reader = new Reader(bytes);
  while (!reader.isOver) {
    const tag = reader.varint();
    const field = Math.floor(tag / 8);
    switch (tag % 8) {
      case VARINT:
        yield [field, reader.varint()];
        break;
      case I64:
        yield [field, reader.take(8)];
        break;
      case LEN:
        yield [field, reader.take(reader.varint())];
        break;
      case I32:
        yield [field, reader.take(4)];
        break;
      default:
        throw new RangeError("a message has a field of no known type");
    }
  }
}

export function varints(bytes) {
  const reader = new Reader(bytes);
  const values = [];
  while (!reader.isOver) values.push(reader.varint());
  return values;
}

export function text(bytes) {
  return TEXT.decode(bytes);
}

export function number(bytes) {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  return bytes.length === 4 ? view.getFloat32(0, true) : view.getFloat64(0, true);
}

class Reader {
  #bytes;
  #at = 0;

  constructor(bytes) {
    this.#bytes = bytes;
  }

  get isOver() {
    return this.#at >= this.#bytes.length;
  }

  varint() {
    let value = 0;
    for (let scale = 1; scale <= 2 ** 63; scale *= 0x80) {
      if (this.isOver) break;
      const byte = this.#bytes[this.#at++];
      value += (byte & 0x7f) * scale;
      if (byte < 0x80) return value;
    }
    throw new RangeError("a number is cut off or too long");
  }

  take(size) {
    if (this.#at + size > this.#bytes.length) throw new RangeError("a field is cut off");
    this.#at += size;
    return this.#bytes.subarray(this.#at - size, this.#at);
  }
}
