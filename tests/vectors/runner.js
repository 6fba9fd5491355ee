"use strict";

// Reads vectors with the reader in JavaScript, in Node (node runner.js FILE) and in a browser, where the page has `Reader`
// already. What comes of each is for Python to judge: `read`, `refused` by a rule, `not here`; anything else is a fault.

async function runVectors(subjects) {
  const bytes = (base64) => Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0));
  const described = async (data) => ({ size: data.length, sha256: Reader.hex(await Reader.sha256(data)) });

  const optionsOf = async (entry) => ({
    keys: await Promise.all((entry.keys ?? []).map(({ kind, secret }) => Reader.keyOf(kind, Reader.unhex(secret)))),
    trust: (entry.trust ?? []).map(Reader.unhex),
    allowUnsigned: entry.allow_unsigned ?? false,
    rank: entry.rank ?? null,
    transforms: new Map([["stream.zstd", (data) => Reader.unzstd(data, 2 ** 24)]]),
  });

  const content = async (data, entry) => {
    const loaded = JSON.stringify(entry.holds ?? "").includes('"loads"');
    return { ...(await described(data)), ...(loaded ? { base64: btoa(String.fromCharCode(...data)) } : {}) };
  };

  const plainValue = (value) =>
    value instanceof Map ? { map: [...value].map(([name, inner]) => [name, plainValue(inner)]) } : Array.isArray(value) ? value.map(plainValue) : value;

  // A float as Python writes it.
  const float = (value) => {
    if (!Number.isFinite(value)) return String(value);
    if (Object.is(value, -0)) return "-0.0";
    const [digits, exponent] = value.toExponential().split("e").map((each, i) => (i ? Number(each) : each));
    if (exponent < -4 || exponent > 15) return `${digits}e${exponent < 0 ? "-" : "+"}${String(Math.abs(exponent)).padStart(2, "0")}`;
    const usual = exponent < 0 ? value.toFixed(Math.max(0, digits.replace(/[-.]/g, "").length - 1 - exponent)) : String(value);
    return usual.includes(".") ? usual : `${usual}.0`;
  };

  const text = (value) => JSON.stringify(value).replace(/[^ -~]/g, (unit) => `\\u${unit.charCodeAt(0).toString(16).padStart(4, "0")}`);

  // As `notation` in described.py.
  const notation = (value) => {
    if (value === null || typeof value === "boolean" || typeof value === "bigint") return String(value);
    if (typeof value === "number") return float(value);
    if (typeof value === "string") return text(value);
    if (value instanceof Uint8Array) return `h'${Reader.hex(value)}'`;
    if (value instanceof Reader.Tuple) return `54099(${notation(value.items)})`;
    if (Array.isArray(value)) return `[${value.map(notation).join(", ")}]`;
    if (!Reader.valueKeysRise(value)) return `54100(${notation([...value].flat())})`;
    return `{${[...value].map((pair) => pair.map(notation).join(": ")).join(", ")}}`;
  };

  const read = {
    plain: async (entry) => described(await Reader.readPlain(Reader.sourceOf(bytes(entry.file)), await optionsOf(entry))),
    container: async (entry) => described(await Reader.readContainer(Reader.sourceOf(bytes(entry.file)), entry.dek ? Reader.unhex(entry.dek) : null)),
    note: async (entry) => plainValue(await Reader.readNote(Reader.sourceOf(bytes(entry.file)), await optionsOf(entry))),
    value: async (entry) => notation(Reader.parseValue(bytes(entry.file))),
    key: async (entry) => {
      const { what, kind, key } = await Reader.parseKey(entry.text);
      return { what, kind, key: Reader.hex(key) };
    },
    checkpoint: async (entry) => {
      const files = new Map(Object.entries(entry.files));
      const folder = { open: async (path) => (files.has(path) ? Reader.sourceOf(bytes(files.get(path))) : null) };
      const checkpoint = await Reader.Checkpoint.open(folder, await optionsOf(entry));
      if (entry.elements) throw new Reader.NotHere("the elements of framed tensors");
      const found = [];
      for (const item of checkpoint.items.values()) {
        const streams = [];
        for (const chunk of item.chunks) streams.push(await content(await checkpoint.stream(item, chunk), entry));
        if (item.chunks[0]?.span) streams[0].value = notation(await checkpoint.value(item));
        found.push([item.name, streams]);
      }
      return found;
    },
  };

  const results = [];
  for (const [subject, entries] of Object.entries(subjects))
    for (const entry of entries) {
      const result = { subject, name: entry.name };
      results.push(result);
      try {
        result.found = await read[subject](entry);
        result.outcome = "read";
      } catch (error) {
        result.outcome = { Refused: "refused", NotHere: "not here" }[error.name] ?? "fault";
        result.rule = error.rule ?? null;
        result.message = result.outcome === "fault" ? String(error.stack) : error.message;
      }
    }
  return results;
}

if (typeof module !== "undefined") {
  const [reader, file] = process.argv.slice(2);
  globalThis.Reader = require(reader);
  runVectors(JSON.parse(require("fs").readFileSync(file, "utf-8"))).then((found) => process.stdout.write(JSON.stringify(found)));
}
