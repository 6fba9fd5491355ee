"use strict";

// Zstandard (RFC 8878), as far as one frame goes that declares its size and needs no dictionary. `Zstd.frame` reads what
// the frame declares, without decoding; `Zstd.decode` gives the content, into memory of exactly that size.

const Zstd = (() => {
  class Broken extends Error {}

  const need = (holds) => {
    if (!holds) throw new Broken("a Zstandard frame is broken");
  };

  const BLOCK = 1 << 17;
  const highest = (value) => 31 - Math.clz32(value);

  // What a frame declares, and where its blocks are; that it ends where the data ends.
  function frame(data) {
    need(data.length >= 6 && data[0] === 0x28 && data[1] === 0xb5 && data[2] === 0x2f && data[3] === 0xfd);
    const view = new DataView(data.buffer, data.byteOffset, data.length);
    const flags = data[4];
    const single = (flags >> 5) & 1;
    need(!(flags & 8));
    const dictionarySize = [0, 1, 2, 4][flags & 3];
    const sizeSize = flags >> 6 ? 1 << (flags >> 6) : single;
    let at = 5 + (single ? 0 : 1);
    need(at + dictionarySize + sizeSize <= data.length);
    let window = single ? 0 : 2 ** (10 + (data[5] >> 3)) * (1 + (data[5] & 7) / 8);
    let dictionary = 0;
    for (let i = 0; i < dictionarySize; i++) dictionary += data[at++] * 2 ** (8 * i);
    let size = sizeSize === 2 ? 256 : sizeSize ? 0 : null;
    for (let i = 0; i < sizeSize; i++) size += data[at++] * 2 ** (8 * i);
    if (single) window = size;
    const blocks = [];
    for (let last = 0; !last; ) {
      need(at + 3 <= data.length);
      const head = data[at] | (data[at + 1] << 8) | (data[at + 2] << 16);
      const [kind, length] = [(head >> 1) & 3, head >> 3];
      last = head & 1;
      const end = at + 3 + (kind === 1 ? 1 : length);
      need(kind !== 3 && length <= BLOCK && end <= data.length);
      blocks.push({ kind, length, begin: at + 3, end });
      at = end;
    }
    const checksum = flags & 4 ? at : null;
    if (checksum !== null) at += 4;
    need(at === data.length);
    return { size, window, dictionary, blocks, checksum: checksum === null ? null : view.getUint32(checksum, true) };
  }

  // -- bits that are read from the end -------------------------------------------------------------------------------

  class Bits {
    constructor(data, begin, end) {
      need(begin < end && data[end - 1]);
      this.data = data;
      this.begin = begin;
      this.left = 8 * (end - begin - 1) + highest(data[end - 1]);
    }

    // At most 24 of them; zeros where there are none left, which `left` below 0 tells.
    read(count) {
      this.left -= count;
      const { data, left } = this;
      if (left < 0) {
        const there = left + count;
        return there <= 0 ? 0 : ((data[this.begin] | (data[this.begin + 1] << 8) | (data[this.begin + 2] << 16)) & ((1 << there) - 1)) << -left;
      }
      const at = this.begin + (left >> 3);
      const word = data[at] | (data[at + 1] << 8) | (data[at + 2] << 16) | (data[at + 3] << 24);
      return (word >>> (left & 7)) & ((1 << count) - 1);
    }
  }

  // -- tables --------------------------------------------------------------------------------------------------------

  function tableOf(counts, log) {
    const size = 1 << log;
    const [symbols, bits, base] = [new Uint8Array(size), new Uint8Array(size), new Uint16Array(size)];
    const next = new Uint16Array(counts.length);
    let high = size;
    counts.forEach((count, symbol) => {
      next[symbol] = Math.abs(count);
      if (count < 0) symbols[--high] = symbol;
    });
    let place = 0;
    counts.forEach((count, symbol) => {
      for (let i = 0; i < count; i++) {
        symbols[place] = symbol;
        do place = (place + (size >> 1) + (size >> 3) + 3) & (size - 1);
        while (place >= high);
      }
    });
    need(place === 0);
    for (let state = 0; state < size; state++) {
      const number = next[symbols[state]]++;
      bits[state] = log - highest(number);
      base[state] = (number << bits[state]) - size;
    }
    return { log, symbols, bits, base };
  }

  function readTable(data, begin, end, maxLog, maxSymbol) {
    need(begin < end);
    const log = (data[begin] & 15) + 5;
    need(log <= maxLog);
    let at = 4;
    const read = (count) => {
      const byte = begin + (at >> 3);
      need(at + count <= 8 * (end - begin) + 16); // a value may be looked at beyond the end, and given back
      const word = (byte < end ? data[byte] : 0) | ((byte + 1 < end ? data[byte + 1] : 0) << 8) | ((byte + 2 < end ? data[byte + 2] : 0) << 16);
      at += count;
      return (word >>> ((at - count) & 7)) & ((1 << count) - 1);
    };
    const counts = [];
    for (let left = 1 << log; left > 0; ) {
      const width = highest(left + 1) + 1;
      let value = read(width);
      const [low, threshold] = [(1 << (width - 1)) - 1, (1 << width) - 2 - left];
      if ((value & low) < threshold) {
        value &= low;
        at--;
      } else if (value > low) value -= threshold;
      const count = value - 1;
      left -= Math.abs(count);
      counts.push(count);
      need(left >= 0 && counts.length <= maxSymbol + 1);
      for (let more = count === 0 ? 3 : 0; more === 3; ) {
        more = read(2);
        for (let i = 0; i < more; i++) counts.push(0);
        need(counts.length <= maxSymbol + 1);
      }
    }
    const used = begin + ((at + 7) >> 3);
    need(used <= end);
    return { table: tableOf(counts, log), at: used };
  }

  function readHuffman(data, begin, end) {
    need(begin < end);
    const head = data[begin];
    let weights = [];
    let at = begin + 1;
    if (head >= 128) {
      need(at + ((head - 126) >> 1) <= end);
      for (let i = 0; i < head - 127; i++) weights.push(i & 1 ? data[at + (i >> 1)] & 15 : data[at + (i >> 1)] >> 4);
      at += (head - 126) >> 1;
    } else {
      need(at + head <= end);
      const { table, at: begun } = readTable(data, at, at + head, 6, 255);
      weights = readWeights(new Bits(data, begun, at + head), table);
      at += head;
    }
    const sum = weights.reduce((total, weight) => total + (weight ? 1 << (weight - 1) : 0), 0);
    need(sum > 0 && weights.length < 256);
    const log = highest(sum) + 1;
    const left = (1 << log) - sum;
    need(log <= 11 && (left & (left - 1)) === 0);
    weights.push(highest(left) + 1);
    const [symbols, lengths] = [new Uint8Array(1 << log), new Uint8Array(1 << log)];
    let place = 0;
    for (let weight = 1; weight <= log; weight++)
      weights.forEach((each, symbol) => {
        if (each !== weight) return;
        symbols.fill(symbol, place, place + (1 << (weight - 1)));
        lengths.fill(log + 1 - weight, place, place + (1 << (weight - 1)));
        place += 1 << (weight - 1);
      });
    return { huffman: { log, symbols, lengths }, at };
  }

  function readWeights(bits, table) {
    const weights = [];
    const states = [bits.read(table.log), bits.read(table.log)];
    for (let turn = 0; weights.length < 255; turn ^= 1) {
      const state = states[turn];
      weights.push(table.symbols[state]);
      states[turn] = table.base[state] + bits.read(table.bits[state]);
      if (bits.left < 0) {
        weights.push(table.symbols[states[turn ^ 1]]);
        return weights;
      }
    }
    throw need(false);
  }

  function decodeHuffman({ log, symbols, lengths }, data, begin, end, out, from, to) {
    const bits = new Bits(data, begin, end);
    const mask = (1 << log) - 1;
    let left = bits.left;
    for (; from < to; from++) {
      let index;
      const low = left - log;
      if (low >= 0) {
        const at = begin + (low >> 3);
        index = ((data[at] | (data[at + 1] << 8) | (data[at + 2] << 16)) >>> (low & 7)) & mask;
      } else {
        need(left >= 0);
        index = (((data[begin] | (data[begin + 1] << 8)) & ((1 << left) - 1)) << -low) & mask;
      }
      out[from] = symbols[index];
      left -= lengths[index];
    }
    need(left === 0);
  }

  // -- blocks --------------------------------------------------------------------------------------------------------

  const range = (from, to) => Array.from({ length: to - from }, (_, i) => from + i);
  const bases = (first, extra) => extra.reduce((found, bits) => [...found, found[found.length - 1] + 2 ** bits], [first]);
  const LITERAL_BITS = [...Array(16).fill(0), 1, 1, 1, 1, 2, 2, 3, 3, 4, 6, ...range(7, 17)];
  const MATCH_BITS = [...Array(32).fill(0), 1, 1, 1, 1, 2, 2, 3, 3, 4, 4, 5, ...range(7, 17)];
  const LITERALS = bases(0, LITERAL_BITS.slice(0, -1));
  const MATCHES = bases(3, MATCH_BITS.slice(0, -1));
  const ones = (count, of = 1) => Array(count).fill(of);
  // Of literals' lengths, offsets, matches' lengths: the predefined table, the largest log and symbol of others.
  const KINDS = [
    { usual: tableOf([4, 3, ...ones(11, 2), 1, 1, 1, ...ones(9, 2), 3, 2, ...ones(5), ...ones(4, -1)], 6), log: 9, symbol: 35 },
    { usual: tableOf([...ones(6), 2, 2, 2, ...ones(15), ...ones(5, -1)], 5), log: 8, symbol: 31 },
    { usual: tableOf([1, 4, 3, ...ones(6, 2), ...ones(37), ...ones(7, -1)], 6), log: 9, symbol: 52 },
  ];

  function readLiterals(data, begin, end, state) {
    need(begin < end);
    const [kind, form] = [data[begin] & 3, (data[begin] >> 2) & 3];
    const head = kind < 2 ? [1, 2, 1, 3][form] : [3, 3, 4, 5][form];
    need(begin + head <= end);
    let at = begin + head;
    let packed = 0;
    for (let i = 0; i < head; i++) packed += data[begin + i] * 2 ** (8 * i);
    if (kind < 2) {
      const size = Math.floor(packed / (head === 1 ? 8 : 16));
      const stored = kind === 1 ? 1 : size;
      need(size <= BLOCK && at + stored <= end);
      const literals = kind === 1 ? new Uint8Array(size).fill(data[at]) : data.subarray(at, at + size);
      return { literals, at: at + stored };
    }
    const width = [10, 10, 14, 18][form];
    const size = Math.floor(packed / 16) % 2 ** width;
    const stop = at + Math.floor(packed / 2 ** (4 + width));
    need(size <= BLOCK && stop <= end);
    if (kind === 2) ({ huffman: state.huffman, at } = readHuffman(data, at, stop));
    need(state.huffman);
    const literals = new Uint8Array(size);
    if (form === 0) decodeHuffman(state.huffman, data, at, stop, literals, 0, size);
    else {
      need(at + 6 <= stop);
      const each = (size + 3) >> 2;
      need(3 * each <= size);
      let start = at + 6;
      for (let i = 0; i < 4; i++) {
        const finish = i < 3 ? start + (data[at + 2 * i] | (data[at + 2 * i + 1] << 8)) : stop;
        need(finish <= stop);
        decodeHuffman(state.huffman, data, start, finish, literals, i * each, i < 3 ? (i + 1) * each : size);
        start = finish;
      }
    }
    return { literals, at: stop };
  }

  function decodeBlock(data, begin, end, out, written, state) {
    let { literals, at } = readLiterals(data, begin, end, state);
    need(at < end);
    let count = data[at++];
    if (count > 127) {
      need(at + (count === 255 ? 2 : 1) <= end);
      count = count === 255 ? data[at++] + (data[at++] << 8) + 0x7f00 : ((count - 128) << 8) + data[at++];
    }
    let used = 0;
    if (count) {
      need(at < end);
      const modes = data[at++];
      need(!(modes & 3));
      KINDS.forEach((kind, i) => {
        const mode = (modes >> (6 - 2 * i)) & 3;
        if (mode === 0) state.tables[i] = kind.usual;
        else if (mode === 1) {
          need(at < end && data[at] <= kind.symbol);
          state.tables[i] = { log: 0, symbols: data.subarray(at, ++at), bits: [0], base: [0] };
        } else if (mode === 2) ({ table: state.tables[i], at } = readTable(data, at, end, kind.log, kind.symbol));
        need(state.tables[i]);
      });
      const [lengths, offsets, matches] = state.tables;
      const repeated = state.offsets;
      const bits = new Bits(data, at, end);
      let [length, offset, match] = [bits.read(lengths.log), bits.read(offsets.log), bits.read(matches.log)];
      for (let i = 0; i < count; i++) {
        const code = offsets.symbols[offset];
        const value = 2 ** code + (code > 16 ? bits.read(code - 16) * 65536 + bits.read(16) : bits.read(code));
        const copied = MATCHES[matches.symbols[match]] + bits.read(MATCH_BITS[matches.symbols[match]]);
        const fresh = LITERALS[lengths.symbols[length]] + bits.read(LITERAL_BITS[lengths.symbols[length]]);
        let back = value - 3;
        if (value <= 3) {
          const which = value - (fresh ? 1 : 0);
          back = which === 3 ? repeated[0] - 1 : repeated[which];
          if (which) {
            if (which > 1) repeated[2] = repeated[1];
            repeated[1] = repeated[0];
            repeated[0] = back;
          }
        } else {
          repeated[2] = repeated[1];
          repeated[1] = repeated[0];
          repeated[0] = back;
        }
        need(used + fresh <= literals.length && written + fresh + copied <= out.length);
        for (let k = 0; k < fresh; k++) out[written++] = literals[used++];
        need(back > 0 && back <= written);
        if (back >= copied) out.copyWithin(written, written - back, written - back + copied);
        else for (let k = written; k < written + copied; k++) out[k] = out[k - back];
        written += copied;
        if (i < count - 1) {
          length = lengths.base[length] + bits.read(lengths.bits[length]);
          match = matches.base[match] + bits.read(matches.bits[match]);
          offset = offsets.base[offset] + bits.read(offsets.bits[offset]);
        }
        need(bits.left >= 0);
      }
      need(bits.left === 0);
    } else need(at === end);
    need(written + literals.length - used <= out.length);
    out.set(literals.subarray(used), written);
    return written + literals.length - used;
  }

  function decode(data) {
    const { size, blocks, checksum } = frame(data);
    const out = new Uint8Array(size);
    const state = { huffman: null, tables: [null, null, null], offsets: [1, 4, 8] };
    let written = 0;
    for (const { kind, length, begin, end } of blocks) {
      need(kind === 2 || written + length <= size);
      if (kind === 2) written = decodeBlock(data, begin, end, out, written, state);
      else {
        if (kind === 1) out.fill(data[begin], written, written + length);
        else out.set(data.subarray(begin, end), written);
        written += length;
      }
    }
    need(written === size);
    need(checksum === null || checksum === Number(xxh64(out) & 0xffffffffn));
    return out;
  }

  // -- the content's checksum ----------------------------------------------------------------------------------------

  const [P1, P2, P3, P4, P5] = [0x9e3779b185ebca87n, 0xc2b2ae3d27d4eb4fn, 0x165667b19e3779f9n, 0x85ebca77c2b2ae63n, 0x27d4eb2f165667c5n];
  const u64 = (value) => BigInt.asUintN(64, value);
  const turn = (value, by) => u64(value << by) | (value >> (64n - by));
  const round = (sum, lane) => u64(turn(u64(sum + lane * P2), 31n) * P1);

  function xxh64(data) {
    const view = new DataView(data.buffer, data.byteOffset, data.length);
    const length = BigInt(data.length);
    let at = 0;
    let hash = P5;
    if (data.length >= 32) {
      const sums = [u64(P1 + P2), P2, 0n, u64(-P1)];
      for (; at + 32 <= data.length; at += 32)
        for (let i = 0; i < 4; i++) sums[i] = round(sums[i], view.getBigUint64(at + 8 * i, true));
      hash = u64(sums.reduce((total, sum, i) => total + turn(sum, [1n, 7n, 12n, 18n][i]), 0n));
      for (const sum of sums) hash = u64((hash ^ round(0n, sum)) * P1 + P4);
    }
    hash = u64(hash + length);
    for (; at + 8 <= data.length; at += 8) hash = u64(turn(hash ^ round(0n, view.getBigUint64(at, true)), 27n) * P1 + P4);
    if (at + 4 <= data.length) {
      hash = u64(turn(hash ^ u64(BigInt(view.getUint32(at, true)) * P1), 23n) * P2 + P3);
      at += 4;
    }
    for (; at < data.length; at++) hash = u64(turn(hash ^ u64(BigInt(data[at]) * P5), 11n) * P1);
    hash = u64((hash ^ (hash >> 33n)) * P2);
    hash = u64((hash ^ (hash >> 29n)) * P3);
    return hash ^ (hash >> 32n);
  }

  return { frame, decode, Broken };
})();

if (typeof module !== "undefined") module.exports = Zstd;
