// Schemas as clients of language models send them, and values to make documents of.

const node = { type: "object", properties: { value: { type: "integer" }, next: { anyOf: [{ $ref: "#/$defs/node" }, { type: "null" }] } }, required: ["value", "next"], additionalProperties: false };

export const SCHEMAS = {
  person: {
    $schema: "https://json-schema.org/draft/2020-12/schema",
    title: "Person",
    type: "object",
    properties: { name: { type: "string", minLength: 1 }, age: { type: "integer", minimum: 0, maximum: 150 }, email: { type: ["string", "null"], format: "email" }, tags: { type: "array", items: { type: "string" }, maxItems: 3 } },
    required: ["name", "age"],
    additionalProperties: false,
  },
  open: { type: "object", properties: { a: { type: "integer" }, ab: { type: "string" } }, required: ["a"] },
  additional: { type: "object", properties: { a: { type: "boolean" } }, additionalProperties: { type: "number", maximum: 10 }, minProperties: 1, maxProperties: 3 },
  union: {
    anyOf: [
      { type: "object", properties: { kind: { const: "circle" }, radius: { type: "number", exclusiveMinimum: 0 } }, required: ["kind", "radius"], additionalProperties: false },
      { type: "object", properties: { kind: { const: "square" }, side: { type: "number", exclusiveMinimum: 0 } }, required: ["kind", "side"], additionalProperties: false },
      { type: "null" },
    ],
  },
  list: { $ref: "#/$defs/node", $defs: { node } },
  merged: {
    allOf: [
      { type: "object", properties: { a: { type: "integer", minimum: 1 }, b: { type: "string" } }, required: ["a"] },
      { properties: { a: { maximum: 5 }, c: { enum: ["x", "y", 3, null] } }, required: ["b"] },
    ],
  },
  tuple: { type: "array", prefixItems: [{ type: "string", pattern: "^[A-Z]{2,3}$" }, { type: "integer", multipleOf: 5 }], items: { type: "boolean" }, minItems: 2, maxItems: 4 },
  strings: { type: "object", properties: { a: { type: "string", pattern: "b+c" }, b: { type: "string", pattern: "^\\d{3}-\\d{4}$|^none$" }, c: { type: "string", minLength: 2, maxLength: 4 }, d: { type: "string", pattern: "^[^a-c]*$", minLength: 1, maxLength: 3 } }, additionalProperties: false },
  formats: { type: "object", properties: { date: { format: "date" }, time: { format: "time" }, at: { format: "date-time" }, id: { format: "uuid" }, ip: { format: "ipv4" }, ip6: { format: "ipv6" }, host: { format: "hostname" }, mail: { format: "email" }, span: { format: "duration" } }, additionalProperties: { type: "string" }, minProperties: 1 },
  numbers: { type: "array", items: { anyOf: [{ type: "number", minimum: -1.5, exclusiveMaximum: 0.25 }, { type: "integer", minimum: 17, maximum: 1234 }, { type: "number", minimum: 1e6, maximum: 2.5e7 }] } },
  integers: { type: "array", items: { type: "integer", exclusiveMinimum: -12, exclusiveMaximum: 100 } },
  constants: { enum: ["a", 1, 2.5, true, null, { x: [1, { y: "z" }], w: "" }, [1, 2], "\u00e9\u{1F600}\"\\"] },
  closed: { type: "object", properties: { one: { type: "null" }, only: { type: "null" }, on: { type: "null" }, never: false }, additionalProperties: false, maxProperties: 2 },
  anything: true,
};

export const STRINGS = ["", "a", "ab", "abc", "abcd", "abcde", "xbbcz", "bc", "US", "USA", "usa", "123-4567", "123-45678", "none", "nones", "\u00e9", "\u{1F600}\u{1F600}", "\u{1F600}\u{1F600}\u{1F600}\u{1F600}\u{1F600}", "a\nb", "\"\\/", "\u0001", "circle", "square", "x", "y", "z",
  "2024-02-29", "2023-02-29", "1900-02-29", "2000-02-29", "2024-04-31", "2024-12-31", "24-01-01", "12:30:45Z", "12:30:45", "23:59:60Z", "12:30:60Z", "24:00:00Z", "12:30:45.5+01:00", "2024-02-29T12:30:45Z", "2024-02-29t12:30:45.123z", "2024-02-30T12:30:45Z",
  "123e4567-e89b-12d3-a456-426614174000", "123E4567-E89B-12D3-A456-42661417400F", "123e4567e89b12d3a456426614174000", "127.0.0.1", "256.0.0.1", "1.2.3", "01.2.3.4", "::1", "::", "1:2:3:4:5:6:7:8", "1:2:3:4:5:6:7:8:9", "1::2::3", "fe80::1%eth0", "::ffff:1.2.3.4", "12345::", "1:2:3:4:5:6:1.2.3.4", "1:2:3:4:5:6:7::", "::2:3:4:5:6:7:8",
  "example.com", "-bad.com", "a-b.c", "a@b.com", "a.b+c@d-e.org", "a@b", "@b.com", "a b@c.com", "a..b@c.com", "P1D", "P1Y2M3DT4H5M6S", "PT1H", "P1W", "P", "PT", "1D", "\u00e9\u{1F600}\"\\"];

export const NUMBERS = [0, -0.5, 1, -1, 2, 2.5, 3, 5, 6, 10, 10.5, 15, 16, 17, 18, 99, 100, 150, 151, 1234, 1235, -1.5, -1.6, -11, -12, 0.1, 0.24, 0.25, 0.26, 1e-7, -1e-7, 1.5e-9, 999999.9, 1e6, 2.5e7, 25000000.5, 123456789012];

export const KEYS = ["name", "age", "email", "tags", "a", "ab", "b", "c", "d", "kind", "radius", "side", "value", "next", "date", "time", "at", "id", "ip", "ip6", "host", "mail", "span", "one", "only", "on", "never", "", "x", "w", "zz", "\u00e9", "a\"b"];

/// Only where no integer is asked for: JavaScript writes these with an exponent.
export const LARGE = [1e21, 1.5e300, -1e22];
