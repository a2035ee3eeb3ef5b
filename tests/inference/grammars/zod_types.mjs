// The JSON schemas of zod's types, and what zod says of replies that follow them.
//
//   node zod_types.mjs            prints {name: schema}
//   node zod_types.mjs check      reads [[name, text], ...], prints the names whose text is refused
import { readFileSync } from "node:fs";
import { z } from "zod";

const category = z.object({
  name: z.string(),
  get children() {
    return z.array(category).max(2);
  },
});
const ab = z.object({ a: z.string(), b: z.int() });

const TYPES = {
  string: z.string(),
  length: z.string().min(2).max(5),
  email: z.email(),
  uuid: z.uuid(),
  uuidv4: z.uuidv4(),
  guid: z.guid(),
  url: z.url(),
  emoji: z.emoji(),
  base64: z.base64(),
  base64url: z.base64url(),
  nanoid: z.nanoid(),
  cuid: z.cuid(),
  cuid2: z.cuid2(),
  ulid: z.ulid(),
  ipv4: z.ipv4(),
  ipv6: z.ipv6(),
  mac: z.mac(),
  cidrv4: z.cidrv4(),
  cidrv6: z.cidrv6(),
  jwt: z.jwt(),
  e164: z.e164(),
  hostname: z.hostname(),
  hex: z.hex(),
  hash: z.hash("sha256"),
  isoDate: z.iso.date(),
  isoTime: z.iso.time(),
  isoDatetime: z.iso.datetime(),
  isoDatetimeOffset: z.iso.datetime({ offset: true }),
  isoDuration: z.iso.duration(),
  startsWith: z.string().startsWith("a.b"),
  endsWith: z.string().endsWith("!"),
  includes: z.string().includes("mid"),
  regex: z.string().regex(/^[a-z]+\/\d{2}$/),
  lowercase: z.string().lowercase(),
  uppercase: z.string().uppercase(),
  template: z.templateLiteral(["id-", z.int(), z.enum(["a", "b"])]),
  number: z.number(),
  int: z.int(),
  int32: z.int32(),
  positive: z.number().positive(),
  range: z.number().min(0).max(1),
  multipleOf: z.number().multipleOf(5),
  boolean: z.boolean(),
  null: z.null(),
  any: z.any(),
  literal: z.literal("x"),
  literals: z.literal(["a", 1, null]),
  enum: z.enum(["a", "b"]),
  numbers: z.enum({ A: 1, B: 2 }),
  nullable: z.string().nullable(),
  optional: z.object({ a: z.string().optional() }),
  default: z.object({ a: z.string().default("x") }),
  never: z.object({ a: z.never().optional(), b: z.int() }),
  readonly: z.object({ a: z.string() }).readonly(),
  described: z.string().describe("d").meta({ title: "t", examples: ["e"] }),
  named: z.object({ a: z.int().meta({ id: "count" }), b: z.int().meta({ id: "other" }) }),
  array: z.array(z.int()).min(1).max(3),
  tuple: z.tuple([z.string(), z.int()]),
  tupleRest: z.tuple([z.string()]).rest(z.int()),
  object: ab,
  strict: z.strictObject({ a: z.string() }),
  loose: z.looseObject({ a: z.string() }),
  catchall: z.object({ a: z.string() }).catchall(z.int()),
  partial: ab.partial(),
  record: z.record(z.string(), z.int()),
  recordLength: z.record(z.string().min(2), z.int()),
  recordEnum: z.record(z.enum(["a", "b.c"]), z.int()),
  partialRecord: z.partialRecord(z.enum(["a", "b.c"]), z.int()),
  recordRegex: z.record(z.string().regex(/^k_/), z.int()),
  recordUuid: z.record(z.uuid(), z.int()),
  union: z.union([z.string(), z.int()]),
  xor: z.xor([z.string(), z.int()]),
  discriminated: z.discriminatedUnion("k", [
    z.object({ k: z.literal("a"), x: z.int() }),
    z.object({ k: z.literal("b"), y: z.string() }),
  ]),
  intersection: z.intersection(z.object({ a: z.string() }), z.object({ b: z.int() })),
  recursive: category,
  json: z.json(),
  refined: z.string().refine((it) => it.length >= 0),
};

if (process.argv[2] === "check") {
  const replies = JSON.parse(readFileSync(0, "utf-8"));
  const refused = replies.filter(([name, text]) => !TYPES[name].safeParse(JSON.parse(text)).success);
  console.log(JSON.stringify(refused));
} else {
  console.log(JSON.stringify(Object.fromEntries(
    Object.entries(TYPES).map(([name, type]) => [name, z.toJSONSchema(type)]),
  )));
}
