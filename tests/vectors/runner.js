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

  // A value, with the types that JSON does not have by name.
  const typed = (value) => {
    if (typeof value === "bigint") return { int: String(value) };
    if (typeof value === "number") return { float: Reader.hex(new Uint8Array(Float64Array.of(value).buffer)) };
    if (value instanceof Uint8Array) return { bytes: Reader.hex(value) };
    if (value instanceof Reader.Tuple) return { tuple: [...value].map(typed) };
    if (value instanceof Map) return { map: [...value].map((pair) => pair.map(typed)) };
    return Array.isArray(value) ? value.map(typed) : value;
  };

  const read = {
    value: async (entry) => typed(Reader.parseValue(bytes(entry.file))),
    plain: async (entry) => described(await Reader.readPlain(Reader.sourceOf(bytes(entry.file)), await optionsOf(entry))),
    container: async (entry) => described(await Reader.readContainer(Reader.sourceOf(bytes(entry.file)), entry.dek ? Reader.unhex(entry.dek) : null)),
    note: async (entry) => plainValue(await Reader.readNote(Reader.sourceOf(bytes(entry.file)), await optionsOf(entry))),
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
        for (const chunk of item.chunks) {
          const stream = await checkpoint.stream(item, chunk);
          const value = chunk.kind === Reader.VALUE ? { value: typed(Reader.parseValue(stream)) } : {};
          streams.push({ ...(await content(stream, entry)), ...value });
        }
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
        if (entry.form) throw new Reader.NotHere("what notes say");
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
