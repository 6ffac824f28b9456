#include "model/safetensors.h"

#include <gmock/gmock.h>

#include "tests/model/checkpoint_files.h"

namespace hadal {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

Result<std::vector<SafetensorsTensor>> parse(const std::string& file) {
  return parse_safetensors_header({reinterpret_cast<const std::byte*>(file.data()), file.size()},
                                  "f.safetensors");
}

std::string with_header(const std::string& header, size_t data_bytes, int64_t length = -1) {
  std::string file(8, '\0');
  const uint64_t stated = length < 0 ? header.size() : static_cast<uint64_t>(length);
  std::memcpy(file.data(), &stated, sizeof(stated));
  return file + header + std::string(data_bytes, 'x');
}

std::string file_error(const std::string& file) {
  const auto tensors = parse(file);
  return tensors.ok() ? "no error" : tensors.status().message;
}

TEST(Safetensors, ReadsWhatTheWriterWrote) {
  testing::FileTensors tensors;
  tensors["b"] = testing::make_tensor("b", DType::kBF16, {2, 3}, testing::pattern);
  tensors["a"] = testing::make_tensor("a", DType::kF32, {5}, testing::pattern);
  tensors["e"] = {"I16", {0, 7}, ""};
  tensors["s"] = {"F64", {}, std::string(8, 'q')};
  const std::string file = testing::safetensors_file(tensors);
  const auto parsed = parse(file);
  ASSERT_TRUE(parsed.ok()) << parsed.status().message;
  ASSERT_EQ(parsed->size(), 4U);
  for (const SafetensorsTensor& tensor : *parsed) {
    const testing::FileTensor& expected = tensors.at(tensor.name);
    EXPECT_EQ(tensor.shape, expected.shape);
    EXPECT_EQ(tensor.dtype_name, expected.dtype);
    EXPECT_EQ(file.substr(tensor.begin, tensor.end - tensor.begin), expected.bytes);
  }
  EXPECT_EQ((*parsed)[0].dtype, DType::kF32);
  EXPECT_EQ((*parsed)[1].dtype, DType::kBF16);
  EXPECT_EQ((*parsed)[2].dtype, std::nullopt);  // the engine does not use I16
}

TEST(Safetensors, AnEmptyFileOfTensorsIsValid) {
  EXPECT_THAT(*parse(with_header("{}", 0)), IsEmpty());
  EXPECT_THAT(*parse(with_header(R"({"__metadata__": {"a": "b", "c": "d"}}   )", 0)), IsEmpty());
}

TEST(Safetensors, NamesMayContainEscapes) {
  const auto parsed =
      parse(with_header(R"({"a\u00e9\"/": {"dtype": "U8", "shape": [2], "data_offsets": [0, 2]}})", 2));
  ASSERT_TRUE(parsed.ok()) << parsed.status().message;
  EXPECT_EQ((*parsed)[0].name, "a\u00e9\"/");
}

TEST(Safetensors, EveryPrefixOfAFileIsRefused) {
  testing::FileTensors tensors;
  tensors["a"] = testing::make_tensor("a", DType::kF32, {3}, testing::pattern);
  tensors["b"] = testing::make_tensor("b", DType::kBF16, {2}, testing::pattern);
  const std::string file = testing::safetensors_file(tensors);
  for (size_t size = 0; size < file.size(); ++size) {
    const auto parsed = parse(file.substr(0, size));
    ASSERT_FALSE(parsed.ok()) << size;
    EXPECT_EQ(parsed.status().code, StatusCode::kDataLoss);
    EXPECT_THAT(parsed.status().message, HasSubstr("f.safetensors: "));
  }
  EXPECT_THAT(file_error(file + "x"), HasSubstr("1 bytes of data follow the last tensor"));
}

TEST(Safetensors, HeaderLengthIsChecked) {
  EXPECT_THAT(file_error("1234567"), HasSubstr("7 bytes are too few"));
  EXPECT_THAT(file_error(with_header("{}", 0, 3)),
              HasSubstr("header length 3 is more than the file's size allows"));
  EXPECT_THAT(file_error(with_header("{}", 0, INT64_MAX)), HasSubstr("more than the format allows"));
}

TEST(Safetensors, HeaderMustBeOfTheFormatsForm) {
  const auto header_error = [](const std::string& header) { return file_error(with_header(header, 4)); };
  EXPECT_THAT(header_error(""), HasSubstr("not valid JSON at its byte"));
  EXPECT_THAT(header_error("{\"a\": "), HasSubstr("not valid JSON"));
  EXPECT_THAT(header_error("{}{}"), HasSubstr("not valid JSON"));
  EXPECT_THAT(header_error("[]"), HasSubstr("a list in the wrong place"));
  EXPECT_THAT(header_error("7"), HasSubstr("a number in the wrong place"));
  EXPECT_THAT(header_error("null"), HasSubstr("null, which the format does not allow"));
  EXPECT_THAT(header_error(std::string(1 << 20, '[')), HasSubstr("a list in the wrong place"));
  EXPECT_THAT(header_error(R"({"a": 4})"), HasSubstr("tensor a: a number in the wrong place"));
  EXPECT_THAT(header_error(R"({"a": {}})"), HasSubstr("tensor a: dtype, shape or data_offsets"));
  EXPECT_THAT(header_error(R"({"a": {"b": {}}})"), HasSubstr("unknown field \"b\""));
  EXPECT_THAT(header_error(R"({"a": {"dtype": {}}})"), HasSubstr("an object in the wrong place"));
  EXPECT_THAT(header_error(R"({"a": {"dtype": "U8", "dtype": "U8"}})"), HasSubstr("dtype given twice"));
  EXPECT_THAT(header_error(R"({"a": {"dtype": ["U8"]}})"), HasSubstr("a list in the wrong place"));
  EXPECT_THAT(header_error(R"({"a": {"dtype": "U8", "shape": [[1]]}})"),
              HasSubstr("a list in the wrong place"));
  EXPECT_THAT(header_error(R"({"a": {"dtype": "U8", "shape": ["4"]}})"),
              HasSubstr("a string in the wrong place"));
  EXPECT_THAT(header_error(R"({"a": {"dtype": "U8", "shape": [-4]}})"), HasSubstr("a negative number"));
  EXPECT_THAT(header_error(R"({"a": {"dtype": "U8", "shape": [4.0]}})"), HasSubstr("not a 64-bit integer"));
  EXPECT_THAT(header_error(R"({"a": {"dtype": "U8", "shape": [9223372036854775808]}})"),
              HasSubstr("over 2^63"));
  EXPECT_THAT(header_error(R"({"a": {"dtype": "U8", "shape": [true]}})"), HasSubstr("a boolean"));
  EXPECT_THAT(header_error(R"({"a": {"shape": [1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1]}})"),
              HasSubstr("16 dimensions"));
  EXPECT_THAT(header_error(R"({"a": {"data_offsets": [0, 1, 2]}})"), HasSubstr("more than two"));
  EXPECT_THAT(header_error(R"({"a": {"dtype": "U8", "shape": [4], "data_offsets": [0]}})"),
              HasSubstr("data_offsets [begin, end] is missing"));
  EXPECT_THAT(header_error(R"({"__metadata__": {"a": 1}})"), HasSubstr("a number in the wrong place"));
  EXPECT_THAT(header_error(R"({"__metadata__": {}, "__metadata__": {}})"), HasSubstr("given twice"));
}

TEST(Safetensors, SizesAndOffsetsMustAgree) {
  const auto entry = [](const char* name, const char* dtype, const char* shape, const char* offsets) {
    return fmt::format(R"("{}": {{"dtype": "{}", "shape": {}, "data_offsets": {}}})", name, dtype, shape,
                       offsets);
  };
  const auto error = [](const std::string& entries, size_t data_bytes) {
    return file_error(with_header("{" + entries + "}", data_bytes));
  };
  EXPECT_EQ(error(entry("a", "F32", "[1]", "[0, 4]"), 4), "no error");
  EXPECT_THAT(error(entry("a", "F32", "[2]", "[0, 4]"), 4),
              HasSubstr("tensor a: 4 bytes of data do not fit F32 of shape [2]"));
  EXPECT_THAT(error(entry("a", "F31", "[1]", "[0, 4]"), 4), HasSubstr("unknown dtype \"F31\""));
  EXPECT_THAT(error(entry("a", "F32", "[1]", "[4, 0]"), 4), HasSubstr("do not lie within"));
  EXPECT_THAT(error(entry("a", "F32", "[1]", "[0, 5]"), 4), HasSubstr("is the file cut off?"));
  EXPECT_THAT(error(entry("a", "F32", "[1]", "[18446744073709551612, 18446744073709551615]"), 4),
              HasSubstr("do not lie within"));
  EXPECT_THAT(error(entry("a", "F32", "[4611686018427387904, 4]", "[0, 0]"), 0), HasSubstr("do not fit"));
  EXPECT_THAT(error(entry("a", "F32", "[4294967296, 4294967296, 4294967296]", "[0, 0]"), 0),
              HasSubstr("do not fit"));
  EXPECT_THAT(error(entry("a", "F32", "[4294967296, 0, 4294967296, 4294967296]", "[0, 0]"), 0),
              HasSubstr("do not fit"));  // the tensor is empty, but the product of its other sizes overflows
  EXPECT_EQ(error(entry("a", "F32", "[5, 0, 7]", "[0, 0]"), 0), "no error");
  EXPECT_THAT(error(entry("a", "F4", "[3]", "[0, 1]"), 1), HasSubstr("do not fit F4 of shape [3]"));
  const std::string first = entry("a", "U8", "[4]", "[0, 4]") + ",";
  EXPECT_THAT(error(first + entry("b", "U8", "[2]", "[3, 5]"), 5),
              HasSubstr("tensor b: its data begin at 3, overlapping"));
  EXPECT_THAT(error(first + entry("b", "U8", "[2]", "[5, 7]"), 7), HasSubstr("begin at 5, leaving a hole"));
  EXPECT_THAT(error(first + entry("b", "U8", "[4]", "[0, 4]"), 4), HasSubstr("overlapping"));
  EXPECT_THAT(error(first + entry("a", "U8", "[2]", "[4, 6]"), 6), HasSubstr("tensor a is given twice"));
  EXPECT_EQ(error(entry("b", "U8", "[2]", "[4, 6]") + "," + entry("a", "U8", "[4]", "[0, 4]"), 6),
            "no error");
}

TEST(Safetensors, ControlCharactersInNamesDoNotReachTheTerminal) {
  EXPECT_THAT(file_error(with_header(R"({"a\u001b[31m": {}})", 0)), HasSubstr("tensor a?[31m"));
}

}  // namespace
}  // namespace hadal
