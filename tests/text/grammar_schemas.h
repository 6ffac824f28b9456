// Lists the JSON schemas of the grammar tests, at least one for each keyword that can be enforced.
#pragma once

namespace hadal {

inline constexpr const char* kPersonSchema =
    R"({"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer"}}, "required": ["name", "age"]})";

inline constexpr const char* kLinkedListSchema =
    R"({"$defs": {"node": {"type": "object", "properties": {"v": {"type": "integer"}, "next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}}, "required": ["v", "next"]}}, "$ref": "#/$defs/node"})";

inline constexpr const char* kSchemas[] = {
    kPersonSchema,
    R"({"type": "object", "properties": {"a": {"type": "number"}, "b": {"type": "null"}}, "required": ["b"]})",
    R"({"type": "array", "items": {"enum": ["a/b", "中文", 3, null, {"x": [1, "\"\\\n"]}]}, "minItems": 1, "maxItems": 4})",
    R"({"type": "string", "minLength": 2, "maxLength": 9})",
    R"({"type": "string", "maxLength": 300})",
    R"({"type": "string", "pattern": "^[A-Z]{2}-[0-9]{3,200}$"})",
    R"({"type": "string", "format": "date"})",
    R"({"type": "integer", "minimum": -12, "maximum": 345})",
    R"({"type": "integer", "exclusiveMinimum": 0, "exclusiveMaximum": 100, "multipleOf": 7})",
    R"({"type": "number", "minimum": -1.5, "exclusiveMaximum": 2})",
    R"({"anyOf": [{"type": "boolean"}, {"type": "object", "properties": {"k": {"const": "v"}}, "required": ["k"]}]})",
    R"({"oneOf": [{"type": "integer"}, {"type": "string"}]})",
    R"({"type": ["string", "null"], "maxLength": 5})",
    kLinkedListSchema,
    R"({"type": "array", "prefixItems": [{"type": "integer"}, {"type": "boolean"}], "items": false, "minItems": 2})",
    R"({"type": "object", "additionalProperties": {"type": "integer"}, "maxProperties": 3})",
    R"({"type": "object", "patternProperties": {"^x_[a-z]+$": {"type": "boolean"}}, "additionalProperties": false})",
    R"({"type": "object", "propertyNames": {"pattern": "^[a-z]{1,3}$"}, "additionalProperties": {"type": "null"}})",
    R"({"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}, "c": {"type": "integer"}}, "minProperties": 2, "maxProperties": 2})",
    R"({"type": "object", "properties": {"a": {"type": "integer"}}, "additionalProperties": {"type": "string"}, "required": ["a"]})",
    R"({"type": "object", "properties": {"free": {"type": "object"}, "list": {"type": "array"}}, "required": ["list"], "title": "T", "x-note": 1})",
    R"({"allOf": [{"type": "boolean"}], "description": "pydantic wraps references so"})",
    R"({"enum": ["red", "green"], "type": "string"})",
};

}  // namespace hadal
