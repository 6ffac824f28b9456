// xgrammar's sources, in one translation unit: JSON schemas and structural tags.
#include "cpp/json_schema_converter.cc"
#include "cpp/structural_tag.cc"
