"use strict";

// A reader of streamxf's format, written from docs/format.md and the pages below it; zstd.js beside it is all that it
// needs. It runs in browsers and in Node. Each refusal names the rule that was broken, or its heading where the rule has
// no number; what this reader leaves to streamxf is a NotHere. Names that come from a file are keys of Maps alone.

const Reader = (() => {
  const Zip = typeof module === "undefined" ? Zstd : require("./zstd.js");
  const subtle = globalThis.crypto.subtle;
  const [KEYED, BOUND, PUBLISHED, BASED] = [1, 2, 4, 8];
  const [OBJECT, TENSOR, FRAMED, VALUE] = [1, 2, 3, 4];
  const [MAX_NUMBER, MIB, MAX_LINE] = [Number.MAX_SAFE_INTEGER, 2 ** 20, 65536];
  const ELEMENT_SIZE = new Map();
  for (const [size, names] of [
    [1, "bool uint8 int8 float8_e4m3fn float8_e4m3fnuz float8_e5m2 float8_e5m2fnuz float8_e8m0fnu float4_e2m1fn_x2"],
    [2, "uint16 int16 float16 bfloat16"],
    [4, "uint32 int32 float32 complex32"],
    [8, "uint64 int64 float64 complex64"],
    [16, "complex128"],
  ])
    for (const name of names.split(" ")) ELEMENT_SIZE.set(name, size);

  class Refused extends Error {
    constructor(reason) {
      super(reason);
      this.name = "Refused";
      this.rule = reason.split(":")[0];
    }
  }

  class NotHere extends Error {
    constructor(what) {
      super(`not in this viewer: ${what}`);
      this.name = "NotHere";
    }
  }

  const check = (holds, rule) => {
    if (!holds) throw new Refused(rule);
  };

  // -- bytes -----------------------------------------------------------------------------------------------------------

  const ascii = (text) => Uint8Array.from(text, (letter) => letter.charCodeAt(0));
  const hex = (bytes) => Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
  const unhex = (text) => Uint8Array.from(text.match(/../g) ?? [], (pair) => parseInt(pair, 16));

  function joined(pieces) {
    const whole = new Uint8Array(pieces.reduce((sum, piece) => sum + piece.length, 0));
    pieces.reduce((at, piece) => (whole.set(piece, at), at + piece.length), 0);
    return whole;
  }
  const concat = (...pieces) => joined(pieces);

  // In a time that does not depend on where they differ.
  function equal(one, other) {
    let difference = one.length ^ other.length;
    for (let i = 0; i < one.length; i++) difference |= one[i] ^ (other[i] ?? 0);
    return difference === 0;
  }

  function compare(one, other) {
    const length = Math.min(one.length, other.length);
    for (let i = 0; i < length; i++) if (one[i] !== other[i]) return one[i] - other[i];
    return one.length - other.length;
  }

  function unascii(bytes, rule) {
    check(bytes.every((byte) => byte < 128), `${rule}: not ASCII`);
    return new TextDecoder().decode(bytes);
  }

  function unutf8(bytes, rule) {
    try {
      return new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(bytes);
    } catch {
      throw new Refused(`${rule}: not UTF-8`);
    }
  }

  const u32 = (...values) => new Uint8Array(Uint32Array.from(values).buffer);

  // Takes fields from the front of some bytes.
  class Fields {
    constructor(data, where) {
      Object.assign(this, { data, where, at: 0, view: new DataView(data.buffer, data.byteOffset, data.length) });
    }

    take(size) {
      check(size <= this.data.length - this.at, `${this.where}: it ends too early`);
      this.at += size;
      return this.data.subarray(this.at - size, this.at);
    }

    // An integer; one that no double holds is above every limit.
    number(size) {
      const bytes = this.take(size);
      let value = 0;
      for (let i = size - 1; i >= 0; i--) value = value * 256 + bytes[i];
      return value;
    }

    numbers(...sizes) {
      return sizes.map((size) => this.number(size));
    }

    rest() {
      return this.take(this.data.length - this.at);
    }
  }

  const CRC = Array.from({ length: 8 }, () => new Uint32Array(256));
  for (let i = 0; i < 256; i++) {
    let sum = i;
    for (let bit = 0; bit < 8; bit++) sum = (sum >>> 1) ^ (sum & 1 ? 0x82f63b78 : 0);
    CRC[0][i] = sum;
  }
  for (let i = 0; i < 256; i++)
    for (let table = 1; table < 8; table++) CRC[table][i] = (CRC[table - 1][i] >>> 8) ^ CRC[0][CRC[table - 1][i] & 255];

  function crc32c(...pieces) {
    const [T0, T1, T2, T3, T4, T5, T6, T7] = CRC;
    let sum = -1;
    for (const data of pieces) {
      let at = 0;
      for (; at + 8 <= data.length; at += 8) {
        const low = sum ^ (data[at] | (data[at + 1] << 8) | (data[at + 2] << 16) | (data[at + 3] << 24));
        sum = T7[low & 255] ^ T6[(low >>> 8) & 255] ^ T5[(low >>> 16) & 255] ^ T4[low >>> 24] ^ T3[data[at + 4]] ^ T2[data[at + 5]] ^ T1[data[at + 6]] ^ T0[data[at + 7]];
      }
      for (; at < data.length; at++) sum = (sum >>> 8) ^ T0[(sum ^ data[at]) & 255];
    }
    return ~sum >>> 0;
  }

  const sha256 = async (...pieces) => new Uint8Array(await subtle.digest("SHA-256", concat(...pieces)));

  // What is read piece by piece: its size, and `read(begin, end)`, which gives bytes or a promise of them.
  const sourceOf = (data) => ({ size: data.length, read: (begin, end) => data.subarray(begin, end) });
  const part = (source, at, size) => ({ size, read: (begin, end) => source.read(at + begin, at + end) });

  // -- JSON: ASCII, whole numbers up to MAX_NUMBER, no name twice, no lone surrogates; objects are Maps ------------------

  const DEEPEST = 140; // more than any rule allows
  const ESCAPES = new Map(Object.entries({ '"': '"', "\\": "\\", "/": "/", b: "\b", f: "\f", n: "\n", r: "\r", t: "\t" }));
  const WORDS = new Map(Object.entries({ true: true, false: false, null: null }));

  function parseJson(data, where, rule) {
    const whole = unascii(data, `${where}: JSON`);
    const wrong = `${where}: no JSON`;
    const blank = /[ \t\n\r]*/y;
    const token = /-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?|true|false|null/y;
    let at = 0;
    const skip = () => {
      blank.lastIndex = at;
      blank.test(whole);
      at = blank.lastIndex;
    };
    const takes = (mark) => {
      skip();
      if (whole[at] !== mark) return false;
      at++;
      return true;
    };
    const string = () => {
      let end = at;
      for (let code; (code = whole.charCodeAt(end)) !== 34; end += code === 92 ? 2 : 1) check(code >= 32, wrong);
      const spelled = whole.slice(at, end);
      at = end + 1;
      const found = spelled.replace(/\\(?:u([0-9a-fA-F]{4})|(.))/g, (_, code, letter) => {
        check(code || ESCAPES.has(letter), wrong);
        return code ? String.fromCharCode(parseInt(code, 16)) : ESCAPES.get(letter);
      });
      check(!/[\ud800-\udfff]/u.test(found), `${rule}: a lone surrogate`);
      return found;
    };
    const value = (left) => {
      if (takes('"')) return string();
      check(left, `${rule}: the depth`);
      if (takes("[")) {
        const found = [];
        if (takes("]")) return found;
        do found.push(value(left - 1));
        while (takes(","));
        check(takes("]"), wrong);
        return found;
      }
      if (takes("{")) {
        const found = new Map();
        if (takes("}")) return found;
        do {
          check(takes('"'), wrong);
          const name = string();
          check(!found.has(name), `${rule}: a name stands twice`);
          check(takes(":"), wrong);
          found.set(name, value(left - 1));
        } while (takes(","));
        check(takes("}"), wrong);
        return found;
      }
      token.lastIndex = at;
      const [word] = token.exec(whole) ?? [];
      check(word !== undefined, wrong);
      at = token.lastIndex;
      if (WORDS.has(word)) return WORDS.get(word);
      check(/^[0-9]{1,16}$/.test(word) && Number(word) <= MAX_NUMBER, `${rule}: a number`);
      return Number(word);
    };
    const result = value(DEEPEST);
    skip();
    check(at === whole.length, wrong);
    return result;
  }

  const innerOf = (value) => (value instanceof Map ? [...value.values()] : Array.isArray(value) ? value : []);

  function checkDepth(value, left, rule) {
    if (typeof value !== "object" || value === null) return;
    check(left, `${rule}: the depth`);
    for (const inner of innerOf(value)) checkDepth(inner, left - 1, rule);
  }

  const count = (value) => Number.isInteger(value);
  const text = (value) => typeof value === "string";
  const matching = (pattern) => (value) => {
    check(!text(value) || pattern.test(value), "index: a string of another form");
    return text(value);
  };
  const HASH = matching(/^[0-9a-f]{64}$/);
  const HEX32 = matching(/^[0-9a-f]{32}$/);

  // A schema is a function that says whether a value is right, a Map (any object), a list of one schema, or an object of
  // schemas by name: "?" marks members that may be missing, and others may be there if their names begin with "_".
  function conform(value, schema, name) {
    if (typeof schema === "function" && schema !== Map) return check(schema(value), `M1: the type of ${name}`);
    if (Array.isArray(schema)) {
      check(Array.isArray(value), `M1: the type of ${name}`);
      for (const inner of value) conform(inner, schema[0], name);
      return;
    }
    check(value instanceof Map, `M1: the type of ${name}`);
    if (schema === Map) return;
    const known = new Map(Object.entries(schema).map(([member, inner]) => [member.replace("?", ""), inner]));
    for (const [member, inner] of value) {
      if (known.has(member)) conform(inner, known.get(member), member);
      else {
        check(member.startsWith("_"), `M1: the members of ${name}`);
        checkDepth(inner, 128, "M1");
        value.delete(member);
      }
    }
    check(Object.keys(schema).every((member) => member.endsWith("?") || value.has(member)), `M1: the members of ${name}`);
  }

  // -- descriptors and codecs --------------------------------------------------------------------------------------------

  const PARAMS = "[a-z][a-z0-9_]*=[A-Za-z0-9._~:-]*(?:&[a-z][a-z0-9_]*=[A-Za-z0-9._~:-]*)*";
  const DESCRIPTOR = new RegExp(`^(([a-z][a-z0-9_-]*(?:\\.[a-z][a-z0-9_-]*)+)/([1-9][0-9]{0,4})(?:\\?(${PARAMS}))?)(?:#(${PARAMS}))?$`);
  const LEVELS = new Map([["streamxf.zstd", [-7, 22]], ["streamxf.lz4", [-64, 12]]]);

  function parseDescriptor(whole) {
    check(whole.length <= 2 * MAX_LINE, "D1");
    const found = DESCRIPTOR.exec(whole);
    check(found, "descriptor: the grammar");
    const [, head, name, version, ...sides] = found;
    check(head.length <= 1024 && (sides[1] ?? "").length <= MAX_LINE, "D1");
    check(name.length <= 64 && Number(version) <= 65535, "descriptor: the name's length, or the version");
    const [params, fragment] = sides.map((side) => (side ? side.split("&").map((pair) => pair.split("=")) : []));
    for (const pairs of [params, fragment]) {
      const keys = pairs.map(([key]) => key).filter((key) => name !== "streamxf.encrypt" || key !== "w");
      check(new Set(keys).size === keys.length, "descriptor: a key stands twice");
    }
    check(params.every(([key], i) => i === 0 || params[i - 1][0] <= key), "D2: the order of parameters");
    return { text: head, name, version: Number(version), params, fragment };
  }

  function lookUp(chain) {
    for (const { name, version, params, fragment } of chain) {
      if (name.startsWith("streamxf.")) {
        check(CODECS.has(name) && version === 1, "D4");
        check(params.every(([key, value]) => name === "streamxf.checksum" && key === "algorithm" && value === "sha256"), "D2: a parameter");
        for (const [key, value] of fragment) {
          check(key === "level" && LEVELS.has(name), "D2: a parameter in the fragment");
          check(/^(0|-?[1-9][0-9]{0,2})$/.test(value), "D3");
          const [low, high] = LEVELS.get(name);
          check(low <= Number(value) && Number(value) <= high, `${name.slice(9)}: level`);
        }
      }
      check(CODECS.has(name), "D4: a third party's codec, which is not here");
    }
    const names = chain.map(({ name }) => name);
    const after = names.includes("streamxf.encrypt") ? names.slice(names.indexOf("streamxf.encrypt") + 1) : [];
    check(after.every((name) => name === "streamxf.checksum"), "D6");
  }

  // What a chain makes of a block's payload. `block` has its number, whether it is the last, the stream key, and `size`.
  async function decodeBlock(payload, chain, block) {
    lookUp(chain);
    for (let place = chain.length - 1; place >= 0; place--) {
      const limit = place === 0 ? block.size : block.size + block.size / 16 + 1024;
      payload = await CODECS.get(chain[place].name)(payload, limit, block, chain[place].params);
      check(payload.length <= limit, "C8");
    }
    return payload;
  }

  // The content of one frame that declares at most `limit` bytes; exactly as many, where `exact`.
  function unzstd(data, limit, exact = false) {
    try {
      const { size, window, dictionary } = Zip.frame(data);
      check(size !== null && size <= limit, exact ? "floatzip: a frame declares another size" : "zstd: the size is not declared, or above the limit");
      check(window <= 2 ** 27 && dictionary === 0, "zstd: the window, or a dictionary");
      check(size === limit || !exact, "floatzip: a frame declares another size");
      return Zip.decode(data);
    } catch (error) {
      if (error instanceof Zip.Broken) throw new Refused(`zstd: ${error.message}`);
      throw error;
    }
  }

  function decodeLz4(payload, limit) {
    check(payload.length, "lz4: an empty payload");
    let [at, size] = [0, 0];
    let out = new Uint8Array(Math.min(limit, 2 * payload.length + 64));
    const byte = () => {
      check(at < payload.length, "lz4: it ends too early");
      return payload[at++];
    };
    const lengthOf = (nibble) => {
      let length = nibble;
      for (let more = nibble === 15 ? 255 : 0; more === 255; length += more) more = byte();
      return length;
    };
    const grow = (more) => {
      check(size + more <= limit, "lz4: above the limit");
      if (size + more <= out.length) return;
      const larger = new Uint8Array(Math.min(limit, 2 * (size + more)));
      larger.set(out.subarray(0, size));
      out = larger;
    };
    for (;;) {
      const head = byte();
      const fresh = lengthOf(head >> 4);
      check(fresh <= payload.length - at, "lz4: it ends too early");
      grow(fresh);
      out.set(payload.subarray(at, at + fresh), size);
      [at, size] = [at + fresh, size + fresh];
      if (at === payload.length) return out.subarray(0, size);
      const back = byte() + 256 * byte();
      const copied = 4 + lengthOf(head & 15);
      check(back > 0 && back <= size, "lz4: an offset before the start");
      grow(copied);
      for (const end = size + copied; size < end; size++) out[size] = out[size - back];
    }
  }

  async function decodeChecksum(payload, limit, block, params) {
    const size = params.length ? 32 : 4;
    check(size <= payload.length && payload.length <= limit + size, "checksum: too short, or above the limit");
    const data = payload.subarray(0, -size);
    check(equal(payload.subarray(-size), params.length ? await sha256(data) : u32(crc32c(data))), "checksum: the digest");
    return data;
  }

  async function decodeEncrypt(payload, limit, { number, last, key }) {
    check(16 <= payload.length && payload.length <= limit + 16, "encrypt: too short, or above the limit");
    const iv = new Uint8Array(12);
    new DataView(iv.buffer).setUint32(7, number);
    iv[11] = Number(last);
    return (await openGcm(key, iv, payload)) ?? check(false, "encrypt: the tag");
  }

  async function decodeFloatzip(payload, limit, block) {
    if (payload[0] & 128) {
      check(block.base, "floatzip: a difference, and no block beneath");
      return decodeDifference(await block.base(block.number), payload);
    }
    const f = new Fields(payload, "floatzip");
    const layout = f.number(1);
    if (layout === 0) {
      check(payload.length - 1 <= limit, "Z1");
      return f.rest();
    }
    check(layout >> 6 === 1, "floatzip: bits 6 and 7 of the layout");
    const [width, rotated, phase, size] = [1 << (layout & 3), Boolean(layout & 4), (layout >> 3) & 7, f.number(4)];
    check(phase < width && !(rotated && width === 1) && size <= limit, "Z1");
    const n = Math.floor((size - phase) / width);
    check(n >= 1, "Z2");
    const planes = [];
    let lanes = 0;
    while (lanes < width) {
      const [kind, stored] = f.numbers(1, 4);
      check([0, 1, 2, 3, 4, 5, 8].includes(kind), "floatzip: a kind of plane");
      const [coding, lane] = kind === 5 ? [5, 1] : [kind & 3, 1 << (kind >> 2)];
      planes.push({ coding, lane, low: lanes, stored });
      lanes += lane;
    }
    check(lanes === width, "Z3");
    check(width > 1 || planes[0].coding === 1 || planes[0].coding === 2, "Z3: of one byte");
    check(f.take(-f.at & 7).every((byte) => byte === 0), "floatzip: zeros before the planes");
    const out = new Uint8Array(size);
    for (const raw of [true, false])
      for (const { coding, lane, low, stored } of planes) {
        if (raw !== (coding === 0)) continue;
        const plane = decodePlane(f.take(stored), coding, lane, n);
        for (let byte = 0; byte < lane; byte++)
          for (let i = byte, to = phase + low + byte; i < plane.length; i += lane, to += width) out[to] = plane[i];
      }
    const edges = f.rest();
    check(edges.length === size - n * width, "Z4");
    if (rotated) rotate(out.subarray(phase, phase + n * width), width);
    out.set(edges.subarray(0, phase));
    out.set(edges.subarray(phase), phase + n * width);
    return out;
  }

  // Turns each number right by one bit.
  function rotate(data, width) {
    for (let at = 0; at < data.length; at += width) {
      let carry = data[at] & 1;
      for (let i = at + width - 1; i >= at; i--) {
        const byte = data[i];
        data[i] = (byte >> 1) | (carry << 7);
        carry = byte & 1;
      }
    }
  }

  function decodePlane(data, coding, lane, n) {
    if (coding === 0) check(data.length === n * lane, "floatzip: the stored size of a raw plane");
    if (coding === 0) return data;
    if (coding === 1) return unzstd(data, n, true);
    if (coding === 2) return decodePacked(data, n);
    if (coding === 5) return decodeFixed(data, n);
    const f = new Fields(data, "floatzip");
    const [head, period, size] = f.numbers(4, 4, 4);
    check(head === 6, "floatzip: the first four bytes of a levelled plane");
    check(1 <= period && period <= 65536, "floatzip: P");
    const rows = Math.ceil(n / 64);
    const levels = unzstd(f.take(size), rows + period, true);
    const plane = decodePacked(f.rest(), n);
    for (let i = 0, column = 0; i < n; i++) {
      plane[i] += levels[i >> 6] + levels[rows + column];
      if (++column === period) column = 0;
    }
    return plane;
  }

  function decodePacked(data, n) {
    const f = new Fields(data, "floatzip");
    const [base, zeros, m] = f.numbers(1, 3, 4);
    check(zeros === 0 && m <= n, "floatzip: three zeros, or more places than elements");
    const [places, values] = [new Fields(f.take(4 * m), "floatzip"), f.take(m)];
    const nibbles = unzstd(f.rest(), Math.ceil(n / 2), true);
    check(n % 2 === 0 || nibbles[nibbles.length - 1] >> 4 === 0, "floatzip: the last four bits");
    const plane = new Uint8Array(n);
    for (let i = 0; i < n; i++) plane[i] = base + (i & 1 ? nibbles[i >> 1] >> 4 : nibbles[i >> 1] & 15);
    for (let i = 0, before = -1; i < m; i++) {
      const place = places.number(4);
      check(before < place && place < n, "floatzip: the places rise strictly and are below n");
      plane[(before = place)] = values[i];
    }
    return plane;
  }

  function decodeFixed(data, n) {
    const f = new Fields(data, "floatzip");
    const [base, bits, zeros, m] = f.numbers(1, 1, 2, 4);
    check(1 <= bits && bits <= 7 && zeros === 0 && m <= n, "floatzip: bits, two zeros, or more gaps than elements");
    const plane = new Uint8Array(512 * Math.ceil(n / 512));
    for (let start = 0; start < n; start += 512) {
      const group = f.take(64 * bits);
      for (let i = 0; i < 512; i++) {
        const [at, shift] = [(i & 63) + 64 * (((i >> 6) * bits) >> 3), ((i >> 6) * bits) & 7];
        plane[start + i] = ((group[at] | (group[at + 64] << 8)) >> shift) & ((1 << bits) - 1);
      }
    }
    check(plane.subarray(n).every((code) => code === 0), "floatzip: codes of elements that are not there");
    for (let i = 0; i < n; i++) plane[i] += base;
    const [gaps, values, more] = [f.take(m), f.take(m), f.rest()];
    check(more.length === 0, "floatzip: bytes behind a fixed plane");
    for (let i = 0, place = -1; i < m; i++) {
      place += gaps[i] + 1;
      check(place < n, "floatzip: an exception behind the last element");
      plane[place] = values[i];
    }
    return plane.subarray(0, n);
  }

  // Bits of a difference, of which the first is the lowest of the first byte.
  class Bits {
    constructor(data) {
      Object.assign(this, { data, at: 0 });
    }

    take(count) {
      let value = 0;
      check(this.at + count <= 8 * this.data.length, "difference: it ends too early");
      for (let i = 0; i < count; i++, this.at++) value += ((this.data[this.at >> 3] >> (this.at & 7)) & 1) * 2 ** i;
      return value;
    }

    count() {
      return this.take(this.take(5));
    }

    // Which of the places belong to the set that comes next; without contexts it has one band.
    members(places, contexts) {
      const [bands, contextOf] = [[], contexts ?? (() => 0)];
      for (let more = 1; more; ) {
        more = this.take(1);
        const low = bands.length ? bands[bands.length - 1].cut + 1 : 0;
        const cut = more ? this.take(8) : 255;
        check(low <= cut && !(more && (cut === 255 || bands.length === 5 || !contexts)), "difference: its bands");
        const own = places.filter((place) => low <= contextOf(place) && contextOf(place) <= cut);
        const [inverted, held, listed] = [this.take(1), this.count(), new Set()];
        const k = held ? this.take(5) : 0;
        for (let i = 0, at = 0; i < held; i++, at++) {
          while (!this.take(1)) at += 2 ** k;
          at += this.take(k);
          check(at < own.length, "difference: an element that its band does not have");
          listed.add(own[at]);
        }
        bands.push({ cut, inverted, listed });
      }
      return places.filter((place) => {
        const { inverted, listed } = bands.find(({ cut }) => contextOf(place) <= cut);
        return listed.has(place) !== Boolean(inverted);
      });
    }
  }

  function decodeDifference(base, payload) {
    const f = new Fields(payload, "difference");
    const [layout, crc, levels] = f.numbers(1, 4, 1);
    const width = 1 << (layout & 3);
    check(payload.length <= Math.floor(base.length / 2) + 64, "difference: too long");
    check(layout >> 3 === 16 && width <= 4 && base.length % width === 0 && levels <= 8 * width, "difference: the layout");
    const [bits, out, n] = [new Bits(f.rest()), Uint8Array.from(base), base.length / width];
    const elements = new { 1: Uint8Array, 2: Uint16Array, 4: Uint32Array }[width](out.buffer);
    const contextOf = layout & 4 ? (place) => ((elements[place] << 1) >>> (8 * width - 8)) & 255 : null;
    if (levels) {
      let places = Array.from({ length: n }, (_, place) => place);
      if (bits.take(1)) {
        const [row, before] = [bits.count(), bits.count()];
        check(before < row && row <= n, "difference: its rows");
        const rows = Array.from({ length: Math.ceil((before + n) / row) }, (_, place) => place);
        const live = new Set(bits.members(rows, null));
        places = places.filter((place) => live.has(Math.floor((place + before) / row)));
      }
      places = bits.members(places, contextOf);
      const level = new Uint8Array(n);
      for (let i = 1, left = places; i < levels; i++) {
        left = bits.members(left, contextOf);
        for (const place of left) level[place]++;
      }
      for (const place of places) {
        const sign = 1 - 2 * bits.take(1);
        elements[place] += sign * (2 ** level[place] + bits.take(level[place]));
      }
    }
    const left = 8 * bits.data.length - bits.at;
    check(left < 8 && bits.take(left) === 0, "difference: bits behind the last element");
    check(crc32c(out) === crc, "difference: the CRC");
    return out;
  }

  const CODECS = new Map([
    ["streamxf.zstd", (payload, limit) => unzstd(payload, limit)],
    ["streamxf.lz4", decodeLz4],
    ["streamxf.checksum", decodeChecksum],
    ["streamxf.encrypt", decodeEncrypt],
    ["streamxf.floatzip", decodeFloatzip],
  ]);

  // -- keys --------------------------------------------------------------------------------------------------------------

  async function hmac(key, ...data) {
    const raw = key.length ? key : new Uint8Array(32);
    const made = await subtle.importKey("raw", raw, { name: "HMAC", hash: "SHA-256" }, false, ["sign"]);
    return new Uint8Array(await subtle.sign("HMAC", made, concat(...data)));
  }

  async function hkdf(secret, info, size = 32, salt = new Uint8Array()) {
    const extracted = await hmac(salt, secret);
    let [last, out] = [new Uint8Array(), new Uint8Array()];
    for (let turn = 1; out.length < size; turn++) {
      last = await hmac(extracted, last, info, [turn]);
      out = concat(out, last);
    }
    return out.subarray(0, size);
  }

  // The content; null if the tag is wrong.
  async function openGcm(key, iv, data, additionalData = new Uint8Array()) {
    const made = await subtle.importKey("raw", key, "AES-GCM", false, ["decrypt"]);
    return subtle.decrypt({ name: "AES-GCM", iv, additionalData }, made, data).then((out) => new Uint8Array(out), () => null);
  }

  // AES key wrap of 32 bytes; null if it does not open.
  async function unwrapAes(key, data) {
    if (data.length !== 40) return null;
    const made = await subtle.importKey("raw", key, "AES-KW", false, ["unwrapKey"]);
    const as = { name: "HMAC", hash: "SHA-256" };
    const opened = await subtle.unwrapKey("raw", data, made, "AES-KW", as, true, ["sign"]).catch(() => null);
    return opened && new Uint8Array(await subtle.exportKey("raw", opened));
  }

  const publicId = async (kind, key) => hex(await hkdf(key, ascii(`streamxf/1 key id ${kind}`), 8));
  const statement = (digest) => concat(ascii("streamxf/1 contents\0"), digest); // V

  // `unwrap(wrapped key, id of the data key)` gives the data key or null; `vouched(voucher, D)` says whether a voucher is
  // right, and is null if the kind does not vouch.
  async function keyOf(kind, secret) {
    if (kind === "aeskw") {
      const [wrapping, vouching] = [await hkdf(secret, ascii("streamxf/1 wrap")), await hkdf(secret, ascii("streamxf/1 vouch"))];
      const vouched = async (voucher, digest) => equal(voucher, await hmac(vouching, statement(digest)));
      return { kind, id: hex(await hkdf(secret, ascii("streamxf/1 key id"), 8)), unwrap: (data) => unwrapAes(wrapping, data), vouched };
    }
    if (kind !== "hpke-x25519") throw new NotHere(`keys of the kind ${kind}`);
    const { own, open } = await x25519(secret);
    return { kind, id: await publicId(kind, own), unwrap: (data, dek) => open(data, concat(ascii("streamxf/1 hpke"), dek)), vouched: null };
  }

  const base64 = (bytes) => btoa(String.fromCharCode(...bytes)).replace(/\+/g, "-").replace(/\//g, "_").replace(/=/g, "");

  // HPKE (RFC 9180), base mode, with DHKEM(X25519, HKDF-SHA256), HKDF-SHA256 and AES-256-GCM.
  async function x25519(secret) {
    const pkcs8 = concat(unhex("302e020100300506032b656e04220420"), secret);
    const made = await subtle.importKey("pkcs8", pkcs8, "X25519", true, ["deriveBits"]).catch(() => {
      throw new NotHere("X25519, which this browser does not have");
    });
    const own = unbase64((await subtle.exportKey("jwk", made)).x, "X25519");
    const [kem, suite] = [concat(ascii("KEM"), [0, 32]), concat(ascii("HPKE"), [0, 32, 0, 1, 0, 2])];
    const extract = (id, salt, label, data) => hmac(salt, ascii("HPKE-v1"), id, ascii(label), data);
    const expand = async (id, key, label, info, size) =>
      (await hmac(key, [size >> 8, size], ascii("HPKE-v1"), id, ascii(label), info, [1])).subarray(0, size);
    const none = new Uint8Array();
    const open = async (data, info) => {
      if (data.length !== 80) return null;
      const encapsulated = data.subarray(0, 32);
      const peer = await subtle.importKey("raw", encapsulated, "X25519", false, []);
      const shared = await subtle.deriveBits({ name: "X25519", public: peer }, made, 256).catch(() => null);
      if (shared === null || new Uint8Array(shared).every((byte) => byte === 0)) return null;
      const agreed = await extract(kem, none, "eae_prk", new Uint8Array(shared));
      const secretOf = await expand(kem, agreed, "shared_secret", concat(encapsulated, own), 32);
      const hashes = [await extract(suite, none, "psk_id_hash", none), await extract(suite, none, "info_hash", info)];
      const scheduled = await extract(suite, secretOf, "secret", none);
      const context = concat([0], ...hashes);
      const [key, iv] = [await expand(suite, scheduled, "key", context, 32), await expand(suite, scheduled, "base_nonce", context, 12)];
      return openGcm(key, iv, data.subarray(32));
    };
    return { own, open };
  }

  async function verifyEd25519(key, signature, data) {
    const made = await subtle.importKey("raw", key, "Ed25519", false, ["verify"]).catch((error) => {
      if (error.name === "NotSupportedError") throw new NotHere("Ed25519, which this browser does not have");
      return null;
    });
    return made !== null && subtle.verify("Ed25519", made, signature, data);
  }

  function unbase64(spelled, rule) {
    check(/^[A-Za-z0-9_-]*$/.test(spelled) && spelled.length % 4 !== 1, `${rule}: base64url`);
    const data = Uint8Array.from(atob(spelled.replace(/-/g, "+").replace(/_/g, "/")), (letter) => letter.charCodeAt(0));
    check(base64(data) === spelled, `${rule}: base64url in its one spelling`);
    return data;
  }

  const ENTRY = "[a-z0-9-]{1,32}:[0-9a-f]{16}:[A-Za-z0-9_-]+";
  const SIGNATURES = new Map([["ed25519", 64], ["ed25519+mldsa65", 64 + 3309]]); // and their sizes

  function parseEntries(entries) {
    const found = entries.split("&").filter(Boolean).map((entry) => entry.slice(entry.indexOf("=") + 1).split(":"));
    check(new Set(found.map(([kind, id]) => `${kind}:${id}`)).size === found.length, "K1: a pair of kind and key_id stands twice");
    return found.map(([kind, id, spelled]) => {
      const data = unbase64(spelled, "K1");
      check(1 <= data.length && data.length <= 16384, "K1: more than 16384 bytes");
      return { kind, id, data };
    });
  }

  function parseWrapped(line) {
    check(line.length <= MAX_LINE, "K1: the length of a wrapped data key");
    const found = new RegExp(`^dek=([0-9a-f]{64})((?:&w=${ENTRY}){1,16})$`).exec(line);
    check(found, "K1: the form of a wrapped data key");
    return { text: line, dek: unhex(found[1]), entries: parseEntries(found[2]) };
  }

  function parseVouchers(line) {
    check(line.length <= MAX_LINE, "K4: the length of the vouchers");
    const signatures = `((?:&sig=${ENTRY.replace("0-9-", "0-9+-")}){0,4})`;
    const found = new RegExp(`^(?:&mac=([0-9a-f]{64})((?:&v=${ENTRY})*)|(?=&sig))${signatures}$`).exec(`&${line}`.split("&_")[0]);
    check(found, "K4: the form of vouchers");
    const [, mac, entries, signed] = found;
    const vouchers = { mac: mac ? unhex(mac) : null, entries: parseEntries(entries ?? ""), signatures: parseEntries(signed) };
    check(vouchers.signatures.every(({ kind, data }) => data.length === (SIGNATURES.get(kind) ?? data.length)), "K4: the size of a signature");
    check(!vouchers.entries.some(({ kind }) => kind.startsWith("hpke-")), "K4: hpke- does not vouch");
    return vouchers;
  }

  // The data key, and the key that opened it.
  async function unwrap(wrapped, keys) {
    const pairs = wrapped.entries.flatMap(({ kind, id, data }) => keys.filter((key) => key.kind === kind && key.id === id).map((key) => ({ key, data })));
    check(pairs.length, "K3: no matching key was given");
    for (const { key, data } of [...pairs.filter(({ key }) => key.vouched), ...pairs.filter(({ key }) => !key.vouched)]) {
      const dataKey = await key.unwrap(data, wrapped.dek);
      if (dataKey && dataKey.length === 32 && equal(await hkdf(dataKey, ascii("streamxf/1 dek id")), wrapped.dek)) return { dataKey, opener: key };
    }
    throw new Refused("K3: there are matching keys, and none opens");
  }

  // What a reader requires of the vouchers for a digest D; gives the data key.
  async function checkVouchers(vouchers, wrapped, digest, access) {
    const { dataKey, opener } = await unwrap(wrapped, access.keys);
    const mac = await hmac(await hkdf(dataKey, ascii("streamxf/1 mac")), statement(digest), ascii(wrapped.text));
    check(equal(mac, vouchers.mac), "K4: mac");
    if (opener.vouched) {
      const own = vouchers.entries.find(({ kind, id }) => kind === opener.kind && id === opener.id);
      check(own && (await opener.vouched(own.data, digest)), "K5");
    }
    if (access.trust.length || (!opener.vouched && !access.allowUnsigned)) await checkSignatures(vouchers, digest, access.trust);
    return dataKey;
  }

  async function checkSignatures({ signatures }, digest, trust) {
    const own = [];
    for (const key of trust) {
      const trusted = key.length === 32 ? "ed25519" : "ed25519+mldsa65";
      const id = await publicId(trusted, key);
      for (const each of signatures) if (each.kind === trusted && each.id === id) own.push([key, each.data]);
    }
    check(own.length, "K6: no signature by one who is trusted");
    for (const [key, data] of own) {
      if (key.length > 32) throw new NotHere("signatures of ML-DSA");
      check(await verifyEd25519(key, data, statement(digest)), "K6: the signature");
    }
  }

  // What a caller gives: `keys` of keyOf, `trust` (public keys of signers), `allowUnsigned`.
  const accessOf = ({ keys = [], trust = [], allowUnsigned = false } = {}) => {
    check(!(trust.length && allowUnsigned), "K6: signers, and unsigned data");
    return { keys, trust, allowUnsigned };
  };

  // The one key in the text of a key file: `what` it is, its `kind` and its bytes.
  // Coordinates of points of low order: of both curves, and those of order 8, two of Ed25519 and two of X25519.
  const PRIME = 2n ** 255n - 19n;
  const ORDER_8 = "05fc536d880238b13933c6d305acdfd5f098eff289f4c345b027b2c28f95e826 7a03ac9277fdc74ec6cc392cfa53202a0f67100d760b3cba4fd84d3d706a17c7 00b8495f16056286fdb1329ceb8d09da6ac49ff1fae35616aeb8413b7c7aebe0 57119fd0dd4e22d8868e1c58c45c44045bef839c55b1d0b1248c50a3bc959c5f";
  const LOW_ORDER = [0n, 1n, PRIME - 1n, ...ORDER_8.split(" ").map((digits) => BigInt(`0x${digits}`))];

  async function parseKey(whole) {
    check(!/[\ud800-\udfff]/u.test(whole) && new TextEncoder().encode(whole).length <= 65536, "key file: its size, or not UTF-8");
    const lines = whole.split("\n").map((line) => line.replace(/^[ \t\r]+|[ \t\r]+$/g, "")).filter((line) => line && !line.startsWith("#"));
    check(lines.length === 1, "K9: exactly one key");
    const [line] = lines;
    if (/^[0-9a-fA-F]{64}$/.test(line)) return { what: "secret", kind: "aeskw", key: unhex(line.toLowerCase()) };
    if (/^[A-Za-z0-9+/]{43}=$/.test(line)) {
      const key = unbase64(line.slice(0, -1).replace(/\+/g, "-").replace(/\//g, "_"), "key file");
      return { what: "secret", kind: "aeskw", key };
    }
    if (/^streamxf-protected:/.test(line)) throw new NotHere("keys under a passphrase");
    const found = /^streamxf-(secret|public):([a-z0-9+-]{1,32}):([0-9a-f]{16}):([A-Za-z0-9_-]+)$/.exec(line);
    check(found, "key file: its form");
    const [, what, kind, id, spelled] = found;
    const pairs = ["hpke-x25519", "hpke-mlkem768-x25519", ...SIGNATURES.keys()];
    const known = { secret: ["aeskw", ...pairs], public: pairs };
    check(known[what].includes(kind), "key file: the kind");
    const key = unbase64(spelled, "key file");
    check(key.length === ((what === "public" && { "hpke-mlkem768-x25519": 1216, "ed25519+mldsa65": 1984 }[kind]) || 32), "key file: the size of the key");
    check((await idOf(what, kind, key)) === id, "K9: key_id");
    const curve = [...(kind.startsWith("hpke-") ? key.slice(-32) : key.slice(0, 32))].reverse();
    const low = BigInt(`0x${hex(Uint8Array.from(curve))}`) % 2n ** 255n % PRIME;
    check(what === "secret" || !LOW_ORDER.includes(low), "K9: a point of low order");
    return { what, kind, key };
  }

  async function idOf(what, kind, key) {
    if (what === "public") return publicId(kind, key);
    if (kind !== "ed25519") return (await keyOf(kind, key)).id;
    const pkcs8 = concat(unhex("302e020100300506032b657004220420"), key);
    const made = await subtle.importKey("pkcs8", pkcs8, "Ed25519", true, ["sign"]);
    return publicId(kind, unbase64((await subtle.exportKey("jwk", made)).x, "Ed25519"));
  }

  // -- containers ----------------------------------------------------------------------------------------------------------

  function checkFormat(f, known, where) {
    const [version, suite, critical] = f.numbers(1, 1, 1, 1);
    check(version === 1 && suite === 1 && !(critical & ~known), `${where}: version, suite or critical flags; a newer streamxf may have written this`);
    return critical;
  }

  const MAX_HEADER = 33 + 1024 + 4096 + 68;

  async function readHeader(source) {
    const data = await source.read(0, Math.min(source.size, MAX_HEADER));
    const f = new Fields(data, "header");
    check(equal(f.take(8), unhex("d35358460d0a1a0a")), "header: magic");
    const flags = checkFormat(f, KEYED | BOUND | PUBLISHED | BASED, "header");
    const [log2, chainLength, identLength] = f.numbers(1, 2, 2);
    check(16 <= log2 && log2 <= 24, "header: block_log2");
    check(chainLength <= 1024 && identLength <= 4096, "header: lengths");
    const salt = f.take(16);
    const [chainData, identity, base] = [f.take(chainLength), f.take(identLength), f.take(flags & BASED ? 32 : 0)];
    const hash = await sha256(data.subarray(0, f.at));
    check(!base.length || flags & PUBLISHED, "C2: based, and not published");
    const seal = f.take(flags & KEYED ? 32 : 0);
    const summed = data.subarray(0, f.at);
    check(crc32c(summed) === f.number(4), "header: crc32c");
    const { codecs, transforms } = parseChain(chainData.length ? unascii(chainData, "C1").split("\n") : []);
    const header = { size: f.at, block: 2 ** log2, flags, salt, base, codecs, transforms, hash, seal, data: data.subarray(0, f.at) };
    header.identity = identLength ? parseIdentity(identity) : null;
    check(Boolean(flags & KEYED) === codecs.some(({ name }) => name === "streamxf.encrypt"), "C2: keyed");
    check(Boolean(flags & BOUND) === Boolean(identLength) && (flags & BOUND || !(flags & PUBLISHED)), "C2: bound, or published");
    const rule = { [TENSOR]: "C5", [VALUE]: "C15" }[header.identity?.kind];
    check(!rule || (flags & PUBLISHED && !transforms.length), `${rule}: published, and without transforms`);
    return header;
  }

  function parseChain(texts) {
    const marked = texts.filter((each) => each.startsWith("!")).length;
    check(texts.length <= 8 && texts.slice(0, marked).every((each) => each.startsWith("!")), "C1: more than 8, or a transform after a codec");
    const found = texts.map((each) => parseDescriptor(each.replace(/^!/, "")));
    check(!texts.some((each) => each.includes("#")), "C1: a fragment");
    const [transforms, codecs] = [found.slice(0, marked), found.slice(marked)];
    check(!transforms.some(({ name }) => name.startsWith("streamxf.")), "D5");
    return { transforms, codecs };
  }

  function parseIdentity(data) {
    const f = new Fields(data, "identity");
    const writer = hex(f.take(16));
    const [number, kind, ndim, dtypeLength, width] = f.numbers(8, 1, 1, 1, 1);
    const shaped = kind === TENSOR || kind === FRAMED;
    check(OBJECT <= kind && kind <= VALUE && ndim <= 64 && dtypeLength <= 36, "identity: bytes 24 to 26");
    check([1, 2, 4, 8].includes(width), "identity: width");
    check(shaped || (ndim === 0 && dtypeLength === 0), "identity: an object has no dtype and no dimensions");
    const dtype = unascii(f.take(dtypeLength), "identity");
    const [offset, shape, whole] = [0, 1, 2].map(() => Array.from({ length: ndim }, () => f.number(width)));
    const name = unutf8(f.rest(), "identity");
    check(Boolean(name) === (kind !== VALUE), "identity: no name, or one of values");
    const most = Math.max(0, ...offset, ...shape, ...whole);
    check(width === ([1, 2, 4].find((size) => most < 2 ** (8 * size)) ?? 8), "identity: width");
    check(number <= MAX_NUMBER, "C4: the number");
    if (shaped) {
      parseDtype(dtype);
      checkPlace(offset, shape, whole, "C4");
    }
    return { writer, number, kind, dtype, offset, shape, whole, name };
  }

  // A chain of the index, with what stands in headers for it.
  function chainFrom(transforms, codecs) {
    const bound = [...transforms.map((each) => `!${each.text}`), ...codecs.map((each) => each.text)];
    check(bound.length <= 8 && bound.join("\n").length <= 1024, "C1: more than 8 descriptors, or too long");
    const encrypt = codecs.filter(({ name }) => name === "streamxf.encrypt");
    check(encrypt.every(({ fragment }) => !fragment.length), "M8: a wrapped key in a descriptor");
    return { codecs, bound, keyed: encrypt.length > 0 };
  }

  const DTYPE = /^([a-z][a-z0-9_]{0,31}):(8|16|32|64|128)$/;

  // The name of a dtype, with its bits if it is not known, and the bytes of an element.
  function parseDtype(dtype) {
    const [, name, bits] = DTYPE.exec(dtype) ?? [];
    const size = Number(bits) / 8;
    check(name && size === (ELEMENT_SIZE.get(name) ?? size), "C16");
    return { name: ELEMENT_SIZE.has(name) ? name : dtype, size };
  }

  const product = (shape) => shape.reduce((found, length) => found * length, 1); // exact up to MAX_NUMBER, which checkPlace sees to
  const same = (one, other) => one.length === other.length && one.every((value, i) => value === other[i]);

  function checkPlace(offset, shape, whole, rule) {
    check(offset.length === whole.length && shape.length === whole.length && whole.length <= 64, `${rule}: dimensions`);
    let elements = 1;
    whole.forEach((length, i) => {
      check(offset[i] + shape[i] <= length, `${rule}: outside of the tensor`);
      elements *= length || 1;
      check(elements <= MAX_NUMBER, `${rule}: too large`);
    });
  }

  // The stream key, after the seal has shown that the data key made this header; null if nothing is encrypted.
  async function unseal(header, dataKey) {
    if (!(header.flags & KEYED)) return null;
    check(dataKey, "K3: the container is encrypted, and no key was given");
    const both = await hkdf(dataKey, concat(ascii("streamxf/1 stream"), header.hash), 64, header.salt);
    check(equal(both.subarray(32), header.seal), "C3");
    return both.subarray(0, 32);
  }

  // Table and footer of a container that fills its source.
  async function readTable(source, header) {
    check(source.size >= header.size + 20, "footer: magic");
    const f = new Fields(await source.read(source.size - 20, source.size), "footer");
    const [rawSize, sum] = f.numbers(8, 4);
    check(equal(f.take(8), unhex("0a1a0d0a465853d3")), "footer: magic");
    check(rawSize <= 2 ** 48, "footer: raw_size");
    const n = Math.max(1, Math.ceil(rawSize / header.block));
    const start = source.size - 20 - n * 4;
    check(start >= header.size, "C10: the table has no room");
    if (n > 2 ** 25) throw new NotHere("streams of more than 2^25 blocks");
    const tail = await source.read(start, source.size);
    const covered = tail.subarray(0, -12);
    check(crc32c(header.hash.subarray(0, 16), covered) === sum, "footer: crc32c");
    const view = new DataView(covered.buffer, covered.byteOffset, covered.length);
    const ends = new Float64Array(n);
    let end = header.size;
    for (let i = 0; i < n; i++) {
      const length = view.getUint32(i * 4, true);
      check(length <= header.block + header.block / 16 + 1024 && (length || n === 1), "C8: an entry of the table");
      ends[i] = end += 8 + length;
    }
    check(end === start, "C10: the table does not begin where the last block ends");
    const { identity } = header;
    if (identity?.kind === TENSOR) check(rawSize === product(identity.shape) * parseDtype(identity.dtype).size, "C5: the stream's size");
    return { rawSize, ends, edges: await sha256(await source.read(0, header.size), tail) };
  }

  async function readBlock(source, header, table, i, key) {
    const [begin, end, last] = [i ? table.ends[i - 1] : header.size, table.ends[i], i === table.ends.length - 1];
    const data = await source.read(begin, end);
    const f = new Fields(data, "block");
    const [word, sum] = f.numbers(4, 4);
    const payload = f.rest();
    check(word >= 2 ** 31 === last, "C7");
    check(word % 2 ** 31 === payload.length, "C10: a block's head has another length than its entry");
    check(crc32c(header.hash.subarray(0, 16), u32(i, word), payload) === sum, "block: crc32c");
    check(!table.digests || equal(table.digests[i + 1], await sha256(data)), "C13");
    const content = await decodeBlock(payload, header.codecs, { number: i, last, key, size: header.block, base: table.base });
    check(content.length === (last ? table.rawSize - i * header.block : header.block), "C9");
    return content;
  }

  async function readBlocks(source, header, table, key) {
    const pieces = [];
    for (let i = 0; i < table.ends.length; i++) pieces.push(await readBlock(source, header, table, i, key));
    return joined(pieces);
  }

  // The stream of a container of which nothing else is known; stream transforms are not undone.
  async function readContainer(source, dataKey = null) {
    const header = await readHeader(source);
    check(!header.base.length, "C17: a difference, and nothing beneath");
    const key = await unseal(header, dataKey);
    return readBlocks(source, header, await readTable(source, header), key);
  }

  async function readPlain(source, options) {
    const access = accessOf(options);
    const start = await source.read(0, Math.min(source.size, 20 + MAX_LINE));
    const f = new Fields(start, "prefix");
    check(equal(f.take(8), unhex("d353584b0d0a1a0a")), "prefix: magic");
    checkFormat(f, 0, "prefix");
    const length = f.number(4);
    check(length <= MAX_LINE, "prefix: key_len");
    const line = f.take(length);
    check(crc32c(start.subarray(0, f.at)) === f.number(4), "prefix: crc32c");
    const rest = part(source, f.at, source.size - f.at);
    const header = await readHeader(rest);
    check(Boolean(header.flags & KEYED) === Boolean(length), "prefix: a wrapped key exactly if keyed");
    check(!(header.flags & (BOUND | PUBLISHED)) && !header.transforms.length, "P1: bound, transforms");
    if (!length) {
      check(!access.keys.length, "K7: not encrypted");
      check(!access.trust.length, "K7: not signed");
      return readBlocks(rest, header, await readTable(rest, header), null);
    }
    check(rest.size >= 20, "seal: magic");
    const g = new Fields(await rest.read(rest.size - 20, rest.size), "seal");
    const [digestCount, sealLength, sum] = g.numbers(4, 4, 4);
    check(equal(g.take(8), unhex("0a1a0d0a4b5853d3")), "seal: magic");
    check(1 <= sealLength && sealLength <= Math.min(MAX_LINE, rest.size - 20), "seal: seal_len");
    const sealAt = rest.size - 20 - sealLength;
    check(32 * digestCount <= sealAt, "seal: the number of digests");
    const container = part(rest, 0, sealAt - 32 * digestCount);
    const seal = await rest.read(sealAt, rest.size - 12);
    check(crc32c(seal) === sum, "seal: crc32c");
    const [wrapped, vouchers] = [parseWrapped(unascii(line, "K1")), parseVouchers(unascii(seal.subarray(0, -8), "K1"))];
    check(vouchers.mac, "K4: no MAC");
    check(Boolean(digestCount) === Boolean(vouchers.signatures.length), "P1: digests exactly if signed");
    const table = await readTable(container, header);
    const stored = await rest.read(container.size, sealAt);
    if (digestCount) {
      table.digests = Array.from({ length: digestCount }, (_, i) => stored.subarray(32 * i, 32 * i + 32));
      check(digestCount === 1 + table.ends.length && equal(table.digests[0], table.edges), "P1: other digests");
    }
    const digest = await sha256(ascii("streamxf/1 plain"), start.subarray(8, 12), digestCount ? stored : table.edges);
    const dataKey = await checkVouchers(vouchers, wrapped, digest, access);
    return readBlocks(container, header, table, await unseal(header, dataKey));
  }

  // -- metadata and notes ----------------------------------------------------------------------------------------------------

  // R1: the sections of a metadata file or a note; head and parts are left where they are.
  async function readSections(source, known = 0) {
    check(source.size >= 104, "trailer: it ends too early");
    const trailer = await source.read(source.size - 104, source.size);
    check(equal(trailer.subarray(96), unhex("0a1a0d0a4d5853d3")), "trailer: magic");
    const f = new Fields(trailer, "trailer");
    const [head, parts, root, keys] = f.numbers(8, 8, 4, 4);
    const increment = checkFormat(f, known, "trailer") > 0;
    check(f.number(4) === 0, "trailer: zeros");
    check(1 <= root && root <= 2 ** 26 && keys <= 2 * MAX_LINE + 1, "trailer: lengths");
    check(head <= MAX_NUMBER && parts <= MAX_NUMBER && head + parts + root + keys + 104 === source.size, "trailer: the lengths are not the file's");
    const packed = await source.read(head + parts, head + parts + root);
    const stored = await source.read(head + parts + root, head + parts + root + keys);
    const [headDigest, digest] = [f.take(32), f.take(32)];
    check(equal(await sha256(packed, stored, trailer.subarray(0, 64)), digest), "trailer: the second digest");
    const lines = keys ? unascii(stored, "M12").split("\n") : [];
    return { increment, head, headDigest, parts: part(source, head, parts), format: trailer.subarray(24, 28), packed, lines };
  }

  // R2: wrapped keys and vouchers, null if there are none; and the data key, null without keys of the reader's.
  async function checkKeys({ lines, format, packed }, label, access) {
    if (!lines.length) check(!access.keys.length && !access.trust.length, "K7: not encrypted, or not signed");
    if (!lines.length) return { wrapped: null, vouchers: null, dataKey: null };
    check(lines.length === 2 && lines[1] && lines.every((line) => line.length <= MAX_LINE), "M12: lines 1 and 2");
    const [wrapped, vouchers] = [lines[0] ? parseWrapped(lines[0]) : null, parseVouchers(lines[1])];
    check((wrapped === null) === (vouchers.mac === null), "K4: a MAC exactly if there is a wrapped data key");
    check(wrapped || !access.keys.length, "K7: not encrypted");
    const digest = await sha256(ascii(label), format, packed);
    const dataKey = access.keys.length ? await checkVouchers(vouchers, wrapped, digest, access) : null;
    if (!access.keys.length && access.trust.length) await checkSignatures(vouchers, digest, access.trust);
    return { wrapped, vouchers, dataKey };
  }

  const countMarks = (data) => data.reduce((sum, byte) => sum + (byte === 0x2c || byte === 0x5b || byte === 0x7b), 0);

  function unzstdRoot(packed, rule) {
    const content = unzstd(packed, Math.min(2 ** 26, Math.max(16 * packed.length, MIB)));
    check(countMarks(content) <= Math.max(packed.length / 3, 65536), `${rule}: commas and brackets`);
    return content;
  }

  async function readNote(source, options) {
    const access = accessOf(options);
    check(source.size <= 2 ** 23, "N1: its size");
    const found = await readSections(source);
    check(found.head === 0 && found.parts.size === 0 && equal(found.headDigest, await sha256()), "N1: a head, or parts");
    await checkKeys(found, "streamxf/1 note", access);
    const content = unzstdRoot(found.packed, "N1");
    check(content.length <= 2 ** 23, "N1: the size of its content");
    check(countMarks(content) <= 2 ** 19, "N1: commas and brackets");
    const value = parseJson(content, "N2", "N2");
    checkDepth(value, 128, "N2");
    return value;
  }

  // -- the index -------------------------------------------------------------------------------------------------------------

  const ENTRY_OF_PART = { from: count, bytes: count, raw: count, sha256: HASH };
  const ROOT = {
    save_id: HEX32, rank: (value) => value === null || count(value), transforms: [text], chains: [[text]], dtypes: [text],
    files: [ENTRY_OF_PART], items: [{ first: text, last: text, items: count, parts: [ENTRY_OF_PART] }],
    modules: [text], packages: Map, extra: Map, "digests?": [ENTRY_OF_PART], "group?": HEX32, "ranks?": count,
    "run?": {
      run: HEX32, name: text, step: count, time: count, rules: Map, metrics: Map,
      "continues?": { step: count, save_id: HEX32 }, "line?": [count],
    },
  };
  const MORE = { "properties?": Map, "path?": [(step) => text(step) || count(step)] };

  function checkRun(run) {
    const metrics = run.get("metrics");
    conform([...metrics.values()], [text], "metrics");
    for (const value of metrics.values()) check(/^[0-9a-f]{16}$/.test(value) && (!/^[7f]ff/.test(value) || /^.ff0{13}$/.test(value) || value === "7ff8000000000000"), "M14: a metric");
    const visit = (value) => {
      check(value !== null, "M13: null");
      if (text(value)) check(!/[\x00-\x1f\x7f-\x9f]/.test(value), "M13: a control");
      if (value instanceof Map) for (const name of value.keys()) visit(name);
      innerOf(value).forEach(visit);
    };
    visit(run);
    const size = bytesOf(run.get("name")).length;
    check(1 <= size && size <= 255 && !/^\.{1,2}$|\//.test(run.get("name")), "M13: name");
    check(!run.has("line") || run.get("line").length, "index: an empty line");
    checkDepth(run.get("rules"), 8, "M13");
  }

  // A part's columns, by id: what is there of each, and `numbers`, which reads one as integers.
  async function readPart(parts, entry, at, needed) {
    const [size, raw] = [entry.get("bytes"), entry.get("raw")];
    check(size <= 2 ** 22 && raw <= 2 ** 22, "index: a part's size");
    check(at + size <= parts.size, "index: parts: it ends too early");
    const packed = await parts.read(at, at + size);
    check(hex(await sha256(packed)) === entry.get("sha256"), "index: the digest of a part");
    const content = unzstd(packed, raw);
    check(content.length === raw, "index: a part's size");
    const f = new Fields(content, "M16: a part");
    check(equal(f.take(4), unhex("53585001")), "M16: the head of a part");
    const [number, rows, chunks] = f.numbers(4, 4, 4);
    check(number < 256, "M16: the head of a part");
    const directory = Array.from({ length: number }, () => f.numbers(1, 1, 2, 4));
    const columns = new Map();
    let before = 0;
    for (const [id, width, zeros, values] of directory) {
      check(zeros === 0 && id > before, "M16: ids of columns do not rise, or zeros");
      before = id;
      columns.set(id, { width, values, data: f.take(width * values) });
      check(f.take(-f.at & 7).every((byte) => byte === 0), "M16: padding");
    }
    check(f.at === content.length, "M16: bytes that belong to no column");
    check(same([...columns.keys()].filter((id) => id < 128), needed), "M16: columns");
    const places = columns.get(10);
    const least = places ? 2 * rows + 4 * chunks + places.values + (columns.has(4) ? countMarks(columns.get(4).data) : 0) : 16 * rows;
    check(size >= least, "index: a part has more than its stored bytes allow");
    return { rows, chunks, ...accessorsOf(columns) };
  }

  function accessorsOf(columns) {
    const sized = (id, width, n) => {
      const column = columns.get(id);
      check(column.width === width && column.values === n, "M16: a column's width or count");
      return column.data;
    };
    const numbers = (id, n) => {
      const { width } = columns.get(id);
      check([1, 2, 4, 8].includes(width), "M16: a column's width or count");
      const f = new Fields(sized(id, width, n), "M16");
      return Float64Array.from({ length: n }, () => {
        const value = f.number(width);
        check(value <= MAX_NUMBER, "M16: a number");
        return value;
      });
    };
    const fixed = (id, width, n) => {
      const data = sized(id, width, n);
      return Array.from({ length: n }, (_, i) => data.subarray(i * width, (i + 1) * width));
    };
    const strings = (ends, id, n) => {
      const stops = numbers(ends, n);
      const data = sized(id, 1, n ? stops[n - 1] : 0);
      return Array.from(stops, (end, i) => {
        check(!i || stops[i - 1] <= end, "M16: ends");
        return data.subarray(i ? stops[i - 1] : 0, end);
      });
    };
    return { sized, numbers, fixed, strings };
  }

  const bytesOf = (value) => new TextEncoder().encode(value);

  function checkPath(path, folders = []) {
    let steps = path.split("/");
    if (steps.length === 3 && steps[0] === ".." && folders.includes(steps[1])) steps = steps.slice(2); // M20
    check(1 <= path.length && bytesOf(path).length <= 4096 && !/[\x00-\x1f\x7f-\x9f\\%?#]/.test(path), "M4: a character");
    check(steps.every((step) => step !== "" && step !== "." && step !== "..") && !steps[0].includes(":"), "M4: a part of the path");
  }

  class Index {
    static async read(source, rank, access) {
      const sections = await readSections(source, 1);
      const keys = await checkKeys(sections, "streamxf/1 index", access);
      const root = parseJson(unzstdRoot(sections.packed, "index"), "index", "M1");
      const index = new Index();
      await index.fill(root, rank, sections, keys, access.trust.length > 0);
      return index;
    }

    async fill(root, rank, { parts, increment }, { wrapped, vouchers, dataKey }, trusted) {
      conform(root, increment ? { ...ROOT, bases: [{ save_id: HEX32, folder: text }] } : ROOT, "the root");
      this.increment = increment;
      this.folders = (increment ? root.get("bases") : []).map((base) => base.get("folder"));
      for (const folder of this.folders) {
        checkPath(folder);
        check(!folder.includes("/"), "M20: a folder");
      }
      conform([...root.get("packages").values()], [text], "packages");
      checkDepth(root.get("extra"), 128, "M1");
      check(rank === null || !root.has("run"), "M1: only .metadata has a run");
      check(rank !== null || !(root.has("group") || root.has("ranks")), "M19: only ranks have group and ranks");
      check(!root.has("ranks") || (rank < root.get("ranks") && root.get("ranks") < 2 ** 31), "M19: the number of ranks");
      if (root.has("run")) checkRun(root.get("run"));
      check(root.get("rank") === rank && (rank === null || rank < 2 ** 31 - 1), "M10");
      const transforms = root.get("transforms").map(parseDescriptor);
      check(!transforms.some(({ name }) => name.startsWith("streamxf.")), "D5");
      const chains = root.get("chains").map((texts) => chainFrom(transforms, texts.map(parseDescriptor)));
      if (!chains.length) chainFrom(transforms, []);
      check(chains.length <= 256, "index: chains");
      const keyed = chains.some((chain) => chain.keyed);
      check(chains.every((chain) => chain.keyed === keyed), "M17: only some encrypt");
      check(keyed === Boolean(wrapped), "M12: line 1 exactly if the chains encrypt");
      const signed = Boolean(vouchers?.signatures.length);
      check(root.has("digests") === signed, "M7: digests exactly if signed");
      check(root.get("dtypes").length <= 256, "index: dtypes");
      this.dtypes = root.get("dtypes").map(parseDtype);
      Object.assign(this, { root, rank, transforms, chains, wrapped, dataKey, keyed, signed, at: 0 });
      Object.assign(this, { authentic: dataKey !== null || trusted, signers: vouchers?.signatures.map(({ kind, id }) => `${kind}:${id}`) ?? [] });
      const entries = [...root.get("files"), ...root.get("items").flatMap((band) => band.get("parts")), ...(root.get("digests") ?? [])];
      const [stored, raw] = ["bytes", "raw"].map((side) => entries.reduce((sum, entry) => sum + entry.get(side), 0));
      check(raw <= 256 * stored + 2 ** 23, "index: the sizes of all parts");
      this.files = await this.readFiles(root.get("files"), parts);
      this.items = new Map();
      let before = null;
      for (const band of root.get("items"))
        for (const item of await this.readBand(band, parts)) {
          check(before === null || compare(before, item.key) < 0, "M16: the names of items do not rise");
          before = item.key;
          this.items.set(item.name, this.checkItem(item));
        }
      this.digests = [];
      for (const entry of root.get("digests") ?? []) {
        const { rows, chunks, fixed } = await this.next(parts, entry, [40]);
        check(entry.get("from") === this.digests.length && chunks === 0 && rows, "M16: from, or chunks of digests");
        for (const digest of fixed(40, 32, rows)) this.digests.push(digest);
      }
      check(this.at === parts.size, "index: bytes that belong to no part");
      this.checkNumbers();
    }

    async next(parts, entry, needed) {
      const found = await readPart(parts, entry, this.at, needed);
      this.at += entry.get("bytes");
      return found;
    }

    async readFiles(entries, parts) {
      const files = [];
      const keyOf = new Map();
      let before = null;
      for (const entry of entries) {
        const { rows, chunks, numbers, fixed, strings } = await this.next(parts, entry, [32, 33, 34, 35, ...(this.keyed ? [36] : [])]);
        check(entry.get("from") === files.length && chunks === 0 && rows, "M16: from, or chunks of files");
        const [sizes, writers, keys] = [numbers(34, rows), fixed(35, 16, rows), this.keyed ? fixed(36, 40, rows) : []];
        strings(32, 33, rows).forEach((bytes, i) => {
          const path = unutf8(bytes, "M16");
          checkPath(path, this.folders);
          check(before === null || compare(before, bytes) < 0, "M16: the paths of files do not rise");
          before = bytes;
          const file = { path, size: sizes[i], writer: hex(writers[i]), key: keys[i] ?? null };
          if (file.key) {
            check(equal(keyOf.get(file.writer) ?? file.key, file.key), "M9: two keys");
            keyOf.set(file.writer, file.key);
          }
          files.push(file);
        });
      }
      return files;
    }

    // The items of a band, with their chunks from all of its parts.
    async readBand(band, parts) {
      const entries = band.get("parts");
      const begins = entries.map((entry) => entry.get("from"));
      check(begins.length && begins[0] === 0 && begins.every((begin, i) => !i || begins[i - 1] < begin), "index: where the parts of a band begin");
      let items = null;
      for (let i = 0; i < entries.length; i++) items = await this.readItems(entries[i], begins[i], begins[i + 1] ?? Infinity, parts, items);
      check(items.length && band.get("items") === items.length, "M16: the items of a band");
      check(items[0].name === band.get("first") && items[items.length - 1].name === band.get("last"), "M16: a band's ends");
      for (const item of items) check(item.chunks.length === item.count, "M16: the number of chunks");
      return items;
    }

    async readItems(entry, begin, end, parts, known) {
      const needed = [1, 2, ...(begin ? [] : [3, 4]), 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, ...(this.signed ? [17] : []), 18, 19, 20, ...(this.increment ? [21, 22] : [])];
      const { rows, chunks, sized, numbers, strings } = await this.next(parts, entry, needed);
      const names = strings(1, 2, rows);
      const more = begin ? [] : strings(3, 4, rows);
      const [dtypes, ndims, counts, chains] = [5, 6, 8, 9].map((id) => numbers(id, rows));
      check(chains.every((chain) => chain < this.chains.length), "M16: no such chain");
      const sum = (list) => list.reduce((total, each) => total + each, 0);
      check(ndims.every((ndim) => ndim <= 64), "M16: dimensions");
      const shapes = numbers(7, sum(ndims));
      const here = counts.map((n) => Math.max(Math.min(n, end) - begin, 0));
      check(sum(here) === chunks, "M16: the number of chunks");
      const dims = sum(here.map((n, i) => n * ndims[i]));
      const [offsets, lengths] = [numbers(10, dims), numbers(11, dims)];
      const [kinds, files, ats, sizes] = [12, 13, 14, 15].map((id) => numbers(id, chunks));
      const firsts = this.signed ? numbers(17, chunks) : null;
      const beneath = this.increment ? [...numbers(21, chunks)] : Array(chunks).fill(0);
      check(beneath.every((n) => n <= 16), "M20: too many beneath");
      const lower = this.increment ? [...numbers(22, 3 * sum(beneath))] : [];
      const boxed = [...here].flatMap((n, i) => Array(n).fill(this.chains[chains[i]].codecs.length > 0));
      const idents = numbers(16, sum(boxed));
      const inside = boxed.map((own, i) => own && kinds[i] === VALUE);
      const [begins, ends] = [19, 20].map((id) => numbers(id, sum(inside)));
      const pieces = boxed.map((own, i) => (own ? 0 : Math.ceil(sizes[i] / MIB)));
      const sums = new Fields(sized(18, 4, sum(pieces)), "M16");
      check(known === null || known.length === rows, "M16: the items of a band's parts");
      let [shapeAt, boxAt, chunk, identAt, valueAt] = [0, 0, 0, 0, 0];
      return names.map((key, i) => {
        const item = { key, name: unutf8(key, "M16"), dtype: dtypes[i], shape: [...shapes.subarray(shapeAt, (shapeAt += ndims[i]))], count: counts[i], chain: chains[i], more: more[i], chunks: [] };
        check(1 <= key.length && key.length <= 4096, "M16: the length of a name");
        const first = known?.[i] ?? item;
        check(equal(first.key, key) && first.dtype === item.dtype && same(first.shape, item.shape) && first.count === item.count && first.chain === item.chain, "M16: the items of a band's parts");
        for (let n = 0; n < here[i]; n++, chunk++) {
          const [offset, shape] = [offsets, lengths].map((boxes) => [...boxes.subarray(boxAt, boxAt + ndims[i])]);
          boxAt += ndims[i];
          const crcs = boxed[chunk] ? null : Array.from({ length: pieces[chunk] }, () => sums.number(4));
          const span = inside[chunk] ? [begins[valueAt], ends[valueAt++]] : null;
          first.chunks.push({ span, offset, shape, kind: kinds[chunk], file: files[chunk], at: ats[chunk], bytes: sizes[chunk], number: boxed[chunk] ? idents[identAt++] : null, first: firsts?.[chunk] ?? null, crcs, lower: lower.splice(0, 3 * beneath[chunk]) });
        }
        return first;
      });
    }

    checkItem({ name, dtype: place, shape, more: data, chunks, count: n, chain }) {
      const more = data.length ? parseJson(data, "more", "M1") : new Map();
      const { root, files } = this;
      const tensor = place > 0;
      conform(more, tensor ? MORE : { "path?": MORE["path?"] }, "more");
      const path = more.get("path") ?? [name];
      check(1 <= path.length && path.length <= 256 && path.every((step) => text(step) || step < 2 ** 20), "index: steps of a path");
      check([...(more.get("properties") ?? new Map()).values()].every((value) => text(value) || typeof value === "boolean"), "M1: properties");
      check(place <= root.get("dtypes").length, "M16: no such dtype");
      check(tensor || (!shape.length && n === 1), "M16: an object has no dimensions, and one chunk");
      const { name: dtype, size } = tensor ? this.dtypes[place - 1] : { name: null, size: null };
      const found = chunks.map((chunk) => {
        const { kind, file, at, bytes, span } = chunk;
        check((tensor ? [TENSOR, FRAMED] : [OBJECT, VALUE]).includes(kind), "M16: a kind");
        check((kind !== TENSOR && kind !== VALUE) || !this.transforms.length, "M6");
        const [begin, end] = span ?? [0, bytes];
        check(kind !== VALUE || (begin < end && end - begin <= MIB && (!span || end <= 2 ** 24)), "M2: the size of a value");
        check(file < files.length, "M16: no such file");
        check(at + bytes <= files[file].size, "M2: not within the file");
        check(!chunk.lower.length || (kind === TENSOR && chunk.number !== null), "M20: a difference that cannot be one");
        for (let i = 0; i < chunk.lower.length; i += 3)
          check(chunk.lower[i] < files.length && chunk.lower[i + 1] + chunk.lower[i + 2] <= files[chunk.lower[i]].size, "M20: beneath");
        return { ...chunk, file: files[file] };
      });
      if (tensor) checkChunks(shape, found, this.rank === null);
      for (const { kind, bytes, shape: shard, crcs } of found) check(kind !== TENSOR || !crcs || bytes === product(shard) * size, "B1: the size of a raw tensor");
      return { name, chain: this.chains[chain], dtype, storedDtype: tensor ? root.get("dtypes")[place - 1] : "", elementSize: size, shape, path, properties: more.get("properties") ?? new Map(), chunks: found };
    }

    // M2: only values share a container, and their places in it are apart.
    checkNumbers() {
      const shared = new Map();
      for (const { chunks } of this.items.values())
        for (const chunk of chunks) {
          if (chunk.number === null) continue;
          const key = `${chunk.file.writer} ${chunk.number}`;
          if (!shared.has(key)) shared.set(key, []);
          shared.get(key).push(chunk);
        }
      for (const chunks of shared.values()) {
        if (chunks.length === 1) continue;
        const [{ file, at, bytes }] = chunks;
        check(chunks.every((one) => one.kind === VALUE && one.file === file && one.at === at && one.bytes === bytes), "M2: a number twice");
        const spans = chunks.map(({ span }) => span).sort((one, other) => one[0] - other[0]);
        check(spans.every(([begin], i) => !i || spans[i - 1][1] <= begin), "M2: values overlap");
      }
    }

    // M9
    async dataKeyOf(file) {
      if (!file.key) return null;
      check(this.dataKey, "K3: the container is encrypted, and no key was given");
      if (file.key.every((byte) => byte === 0)) return this.dataKey;
      const opened = await unwrapAes(await hkdf(this.dataKey, ascii("streamxf/1 keys")), file.key);
      return opened ?? check(false, "M9: the key of a writer");
    }
  }

  // M5. Chunks tile a tensor exactly if their corners, each with a sign, add up to the tensor's own corners: no pairs have
  // to be compared. Dimensions that no chunk cuts do not count.
  function checkChunks(shape, chunks, whole) {
    checkPlace(shape.map(() => 0), shape, shape, "M5");
    chunks.forEach((chunk, i) => {
      checkPlace(chunk.offset, chunk.shape, shape, "M5");
      check(!i || compare(chunks[i - 1].offset, chunk.offset) < 0, "M5: offsets do not rise");
    });
    const full = chunks.filter((chunk) => product(chunk.shape));
    const cut = shape.map((_, i) => i).filter((i) => full.some((chunk) => chunk.shape[i] !== shape[i]));
    if (!whole) return checkApart(full, cut);
    if (!full.length) return check(product(shape) === 0, "M5: an element is in no chunk");
    const grid = cut.map((i) => new Map(full.map((chunk) => [chunk.offset[i], chunk.shape[i]])));
    const regular = full.every((chunk) => cut.every((i, at) => grid[at].get(chunk.offset[i]) === chunk.shape[i]));
    if (regular && product(grid.map((lengths) => lengths.size)) === full.length) {
      const lengths = grid.map((each) => [...each.values()].reduce((sum, length) => sum + length, 0));
      return check(cut.every((i, at) => lengths[at] === shape[i] && adjoin(grid[at])), "M5: an element is in no chunk, or in two");
    }
    check(full.length * 2 ** cut.length <= 2 ** 20, "M5: too many chunks that are no grid");
    const corners = new Map();
    const add = (offset, lengths, sign) => {
      for (let bits = 0; bits < 2 ** cut.length; bits++) {
        let [key, value] = ["", sign];
        cut.forEach((i, at) => {
          const far = (bits >> at) & 1;
          key += `${offset[i] + far * lengths[i]} `;
          if (far) value = -value;
        });
        corners.set(key, (corners.get(key) ?? 0) + value);
      }
    };
    for (const chunk of full) add(chunk.offset, chunk.shape, 1);
    add(shape.map(() => 0), shape, -1);
    for (const sum of corners.values()) check(sum === 0, "M5: an element is in no chunk, or in two");
  }

  const adjoin = (lengths) => {
    let end = 0;
    return [...lengths].sort(([a], [b]) => a - b).every(([offset, length]) => offset === end && (end += length));
  };

  // That no two of them overlap: planes that cut none part them into groups, in which all pairs are compared.
  function checkApart(chunks, cut) {
    for (const groups = [chunks]; groups.length; ) {
      const group = groups.pop();
      const parts = group.length > 4096 ? cut.map((d) => parted(group, d)).find((found) => found.length > 1) : null;
      if (parts) groups.push(...parts);
      else {
        check(group.length <= 4096, "M5: too many chunks that no plane parts");
        group.forEach((one, i) => {
          for (let k = 0; k < i; k++) {
            const other = group[k];
            check(cut.some((d) => one.offset[d] >= other.offset[d] + other.shape[d] || other.offset[d] >= one.offset[d] + one.shape[d]), "M5: chunks overlap");
          }
        });
      }
    }
  }

  function parted(chunks, along) {
    const found = [];
    let end = -1;
    for (const chunk of [...chunks].sort((one, other) => one.offset[along] - other.offset[along])) {
      if (chunk.offset[along] >= end) found.push([]);
      found[found.length - 1].push(chunk);
      end = Math.max(end, chunk.offset[along] + chunk.shape[along]);
    }
    return found;
  }

  // -- a checkpoint ------------------------------------------------------------------------------------------------------------

  // `folder.open(path)` gives a source, or null where there is no such file.
  class Checkpoint {
    static async open(folder, options = {}) {
      const { rank = null, transforms = new Map() } = options;
      const access = accessOf(options);
      const name = rank === null ? ".metadata" : `__${rank}.metadata`;
      const source = await folder.open(name);
      check(source, `index: there is no ${name}`);
      const [first] = await source.read(0, Math.min(1, source.size));
      const end = await source.read(Math.max(0, source.size - 8), source.size);
      if (first === 0x80 && !equal(end, unhex("0a1a0d0a4d5853d3"))) throw new NotHere("checkpoints of torch's own writers, whose index is a pickle");
      const index = await Index.read(source, rank, access);
      return Object.assign(new Checkpoint(), { index, folder, transforms, items: index.items });
    }

    // R4: what has to be right before a chunk's blocks are decoded, or those beneath a difference, which is in `above`.
    async openChunk(item, chunk, above = null) {
      const { index } = this;
      const { file } = chunk;
      const source = await this.folder.open(file.path);
      check(source, `M3: there is no ${file.path}`);
      check(source.size === file.size, "M3: the size of a file");
      const stored = part(source, chunk.at, chunk.bytes);
      if (!item.chain.codecs.length) return { stored };
      const header = await readHeader(stored);
      check(!above || (equal(header.hash, above.base) && header.block === above.block), "C17: not what the difference was made from");
      const chain = [...header.transforms.map((each) => `!${each.text}`), ...header.codecs.map((each) => each.text)];
      check(same(chain, item.chain.bound), "M8: the chain");
      check(header.flags & PUBLISHED, "M8: published");
      const { identity } = header;
      check(identity.writer === file.writer && (above || identity.number === chunk.number) && identity.kind === chunk.kind && identity.dtype === item.storedDtype, "M8: this item");
      check(same(identity.offset, chunk.offset) && same(identity.shape, chunk.shape) && same(identity.whole, item.shape), "M8: this item");
      check(Boolean(header.base.length) === Boolean(chunk.lower.length), "M20: a difference, or none");
      const key = await unseal(header, await index.dataKeyOf(file));
      const table = await readTable(stored, header);
      if (index.signed) {
        table.digests = this.digestsOf(chunk, 1 + table.ends.length);
        check(equal(table.digests[0], table.edges), "C13: the first digest");
      }
      if (chunk.lower.length) {
        const [place, at, bytes, ...lower] = chunk.lower;
        const next = { ...chunk, file: index.files[place], at, bytes, lower, first: chunk.first + 1 + table.ends.length };
        const below = await this.openChunk(item, next, header);
        table.base = (i) => readBlock(below.stored, below.header, below.table, i, below.key);
      }
      return { stored, header: { ...header, codecs: item.chain.codecs }, table, key };
    }

    // The chain of an item, as descriptors; streamxf.raw/1 for tensors that are stored bare.
    chainOf({ chunks, chain }) {
      return chunks[0]?.kind === TENSOR && chunks[0].crcs ? ["streamxf.raw/1"] : chain.bound;
    }

    // M18
    digestsOf({ first }, n) {
      check(first + n <= this.index.digests.length, "M18: no such digest");
      return this.index.digests.slice(first, first + n);
    }

    // All of a chunk's stream, or of an object's. That of values is kept for the next of them.
    async stream(item, chunk) {
      const { span, number, file } = chunk;
      const valueIn = (data) => {
        check(span[1] <= data.length, "M2: the stream ends before the value");
        return data.subarray(...span);
      };
      if (span && this.values?.number === number && this.values.file === file && this.values.chain === item.chain) return valueIn(this.values.data);
      const { stored, header, table, key } = await this.openChunk(item, chunk);
      check(!span || table.rawSize <= 2 ** 24, "V5");
      let data = header ? await readBlocks(stored, header, table, key) : await this.readBare(stored, chunk, 0, stored.size);
      if (span) {
        this.values = { number, file, chain: item.chain, data };
        return valueIn(data);
      }
      for (const transform of [...this.index.transforms].reverse()) {
        check(this.transforms.has(transform.name), `D5: nothing here undoes ${transform.name}`);
        data = await this.transforms.get(transform.name)(data);
      }
      return data;
    }

    // A value, as `parseValue` gives it.
    async value(item) {
      const [chunk] = item.chunks;
      if (chunk.kind !== VALUE) throw new NotHere("objects that are pickles");
      return parseValue(await this.stream(item, chunk));
    }

    // The elements of a box in a tensor, row-major; of each chunk, only the blocks are read that have some of them.
    async elements(item, offset, shape) {
      const size = item.elementSize;
      checkPlace(offset, shape, item.shape, "M5");
      const out = new Uint8Array(product(shape) * size);
      const last = Math.max(shape.length - 1, 0);
      let filled = 0;
      for (const chunk of out.length ? item.chunks : []) {
        const low = offset.map((at, i) => Math.max(at, chunk.offset[i]));
        const lengths = offset.map((at, i) => Math.min(at + shape[i], chunk.offset[i] + chunk.shape[i]) - low[i]);
        if (lengths.some((length) => length <= 0)) continue;
        if (chunk.kind !== TENSOR) throw new NotHere("framed tensors, which are pickles");
        const read = await this.readerOf(item, chunk);
        const place = (at, from, lengthsOf) => at.reduce((sum, value, i) => sum * lengthsOf[i] + value - from[i], 0);
        const row = (lengths[last] ?? 1) * size;
        for (let rows = product(lengths.slice(0, last)), i = 0; i < rows; i++) {
          const at = [...low];
          for (let d = last - 1, left = i; d >= 0; left = Math.floor(left / lengths[d--])) at[d] += left % lengths[d];
          const from = place(at, chunk.offset, chunk.shape) * size;
          out.set(await read(from, from + row), place(at, offset, shape) * size);
        }
        filled += product(lengths) * size;
      }
      if (filled < out.length) throw new NotHere("elements that other ranks have");
      return out;
    }

    // What reads a range of a chunk's stream; it keeps the piece that it read last.
    async readerOf(item, chunk) {
      const { stored, header, table, key } = await this.openChunk(item, chunk);
      const step = header ? header.block : MIB;
      let [held, piece] = [-1, null];
      const load = async (i) => {
        if (held !== i) piece = header ? await readBlock(stored, header, table, i, key) : await this.readBare(stored, chunk, i * MIB, Math.min(stored.size, (i + 1) * MIB));
        held = i;
        return piece;
      };
      return async (begin, end) => {
        const found = [];
        for (let at = begin; at < end; ) {
          const i = Math.floor(at / step);
          const stop = Math.min(end, (i + 1) * step);
          found.push((await load(i)).subarray(at - i * step, stop - i * step));
          at = stop;
        }
        return joined(found);
      };
    }

    // B2
    async readBare(stored, chunk, begin, end) {
      const { crcs } = chunk;
      const digests = this.index.signed ? this.digestsOf(chunk, crcs.length) : null;
      const first = Math.floor(begin / MIB);
      const data = await stored.read(first * MIB, Math.min(stored.size, Math.ceil(end / MIB) * MIB));
      for (let at = 0, i = first; at < data.length; at += MIB, i++) {
        const piece = data.subarray(at, at + MIB);
        check(crc32c(piece) === crcs[i], "B2: the CRC of a MiB");
        check(!digests || equal(digests[i], await sha256(piece)), "M18: a piece");
      }
      return data.subarray(begin - first * MIB, end - first * MIB);
    }
  }

  // -- values: null, booleans, numbers (floats), BigInts (integers), strings, Uint8Arrays, Arrays, Tuples, Maps -----------------

  class Tuple extends Array {}

  const [TUPLE, ORDERED] = [54099n, 54100n];

  function parseValue(data) {
    check(data.length <= MIB, "V3: too many bytes");
    const f = new Fields(data, "V1");
    let nodes = 0;
    const head = () => {
      const [first] = f.take(1);
      const [major, low] = [first >> 5, first & 31];
      check(low < 28, "V1: a head");
      const bytes = f.take(low < 24 ? 0 : 2 ** (low - 24));
      const number = low < 24 ? BigInt(low) : BigInt(`0x${hex(bytes)}`);
      check(major === 7 || low < 24 || number >= [24n, 2n ** 8n, 2n ** 16n, 2n ** 32n][low - 24], "V1: a shorter form");
      return { major, low, number };
    };
    const counted = (number) => {
      check(number <= 65536n, "V3: too many values");
      return Number(number);
    };
    const value = (depth, key = false) => {
      check(++nodes <= 65536, "V3: too many values");
      const { major, low, number } = head();
      if (major < 2) {
        check(!key || number + BigInt(major) < 2n ** 53n, "V2: a key");
        return major ? -1n - number : number;
      }
      if (major === 3) return unutf8(f.take(Number(number)), "V1");
      check(!key, "V2: a key");
      if (major === 2) return f.take(Number(number));
      if (major === 7 && low >= 25) return floatFrom(low, number);
      if (major === 7) {
        check(20 <= low && low <= 22, "V1: a simple value");
        return [false, true, null][low - 20];
      }
      check(depth < 64, "V3: depth");
      return container(major, low, number, depth + 1);
    };
    const container = (major, low, number, depth) => {
      let tag = null;
      if (major === 6) {
        check(low === 25 && (number === TUPLE || number === ORDERED), "V1: a tag");
        tag = number;
        ({ major, number } = head());
        check(major === 4, "V1: what has a tag is an array");
      }
      if (major === 4 && tag !== ORDERED) {
        const found = tag ? new Tuple() : [];
        for (let left = counted(number); left > 0; left--) found.push(value(depth));
        return found;
      }
      check(major === 5 || number % 2n === 0n, "V1: a key without a value");
      const [found, encoded] = [new Map(), []];
      for (let left = counted(major === 5 ? number : number / 2n); left > 0; left--) {
        const begin = f.at;
        const key = value(depth, true);
        encoded.push(data.subarray(begin, f.at));
        found.set(key, value(depth));
      }
      check(found.size === encoded.length, "V2: a key twice");
      check(encoded.every((key, i) => !i || compare(encoded[i - 1], key) < 0) === (major === 5), "V2: the order of keys");
      return found;
    };
    const result = value(0);
    check(f.at === data.length, "V6: more than one value");
    return result;
  }

  // A float of CBOR, which is the shortest that has its value.
  function floatFrom(low, number) {
    const view = new DataView(new ArrayBuffer(8));
    view.setBigUint64(0, number << BigInt(64 - 2 ** (low - 21)));
    const value = low === 25 ? half(view.getUint16(0)) : low === 26 ? view.getFloat32(0) : view.getFloat64(0);
    if (Number.isNaN(value)) check(low === 25 && number === 0x7e00n, "V1: a NaN");
    else if (low === 27) check(Math.fround(value) !== value, "V1: a shorter float");
    else if (low === 26) {
      const size = Math.abs(value);
      const unit = 2 ** (Math.max(Math.floor(Math.log2(size)), -14) - 10);
      check(Number.isFinite(value) && size && (size > 65504 || !Number.isInteger(size / unit)), "V1: a shorter float");
    }
    return value;
  }

  // -- numbers -----------------------------------------------------------------------------------------------------------------

  // A float by its bits, of which `mantissa` are fractional and one is the sign.
  function floatOf(bits, exponent, mantissa, bias, special) {
    const [sign, power, fraction] = [bits >> (exponent + mantissa) ? -1 : 1, (bits >> mantissa) & (2 ** exponent - 1), bits & (2 ** mantissa - 1)];
    const odd = special(power, fraction, sign);
    if (odd !== undefined) return odd;
    return sign * (power ? (1 + fraction / 2 ** mantissa) * 2 ** (power - bias) : (fraction / 2 ** mantissa) * 2 ** (1 - bias));
  }

  const ieee = (most) => (power, fraction, sign) => (power !== most ? undefined : fraction ? NaN : sign * Infinity);
  const finite = (power, fraction, sign) => (sign < 0 && !power && !fraction ? NaN : undefined);
  const half = (bits) => floatOf(bits, 5, 10, 15, ieee(31));
  const four = (bits) => floatOf(bits, 2, 1, 1, () => undefined);
  const complex = (real, imaginary) => `${real}${imaginary < 0 || Object.is(imaginary, -0) ? "-" : "+"}${Math.abs(imaginary)}i`;
  const NUMBERS = new Map(Object.entries({
    bool: (v, i) => v.getUint8(i) !== 0,
    uint8: (v, i) => v.getUint8(i),
    int8: (v, i) => v.getInt8(i),
    uint16: (v, i) => v.getUint16(i, true),
    int16: (v, i) => v.getInt16(i, true),
    uint32: (v, i) => v.getUint32(i, true),
    int32: (v, i) => v.getInt32(i, true),
    uint64: (v, i) => v.getBigUint64(i, true),
    int64: (v, i) => v.getBigInt64(i, true),
    float16: (v, i) => half(v.getUint16(i, true)),
    bfloat16: (v, i) => floatOf(v.getUint16(i, true), 8, 7, 127, ieee(255)),
    float32: (v, i) => v.getFloat32(i, true),
    float64: (v, i) => v.getFloat64(i, true),
    complex32: (v, i) => complex(half(v.getUint16(i, true)), half(v.getUint16(i + 2, true))),
    complex64: (v, i) => complex(v.getFloat32(i, true), v.getFloat32(i + 4, true)),
    complex128: (v, i) => complex(v.getFloat64(i, true), v.getFloat64(i + 8, true)),
    float8_e4m3fn: (v, i) => floatOf(v.getUint8(i), 4, 3, 7, (power, fraction) => (power === 15 && fraction === 7 ? NaN : undefined)),
    float8_e4m3fnuz: (v, i) => floatOf(v.getUint8(i), 4, 3, 8, finite),
    float8_e5m2: (v, i) => floatOf(v.getUint8(i), 5, 2, 15, ieee(31)),
    float8_e5m2fnuz: (v, i) => floatOf(v.getUint8(i), 5, 2, 16, finite),
    float8_e8m0fnu: (v, i) => (v.getUint8(i) === 255 ? NaN : 2 ** (v.getUint8(i) - 127)),
    float4_e2m1fn_x2: (v, i) => `${four(v.getUint8(i) & 15)}, ${four(v.getUint8(i) >> 4)}`,
  }));

  // The elements of some bytes: numbers, integers of 64 bits, truth values, and text of pairs.
  function numbersOf(dtype, data) {
    const [size, read] = [ELEMENT_SIZE.get(dtype), NUMBERS.get(dtype)];
    if (!read) throw new NotHere(`numbers of the dtype ${dtype}`);
    const view = new DataView(data.buffer, data.byteOffset, data.length);
    return Array.from({ length: data.length / size }, (_, i) => read(view, i * size));
  }

  return { Checkpoint, NotHere, Refused, Tuple, VALUE, decodeDifference, hex, keyOf, numbersOf, parseKey, parseValue, readContainer, readNote, readPlain, sha256, sourceOf, unhex, unzstd };
})();

if (typeof module !== "undefined") module.exports = Reader;
