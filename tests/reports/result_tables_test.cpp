// What tables write for a value, and what is in them for one printer only; the tables themselves are seen in the texts
// of the printers.
#include "reports/result_tables.h"

#include <limits>

#include <gtest/gtest.h>

#include "tests/reports/sample_reports.h"

namespace shardproof {
namespace {

TEST(SizesText, ShortensManySizes) {
  EXPECT_EQ(sizes_text({}), "");
  EXPECT_EQ(sizes_text({9, 8, 7}), "9,8,7");
  EXPECT_EQ(sizes_text({1, 2, 3, 4, 5, 6, 7, 8}), "1,2,3,4,5,6,7,8");
  EXPECT_EQ(sizes_text({1, 2, 3, 4, 5, 6, 7, 8, 9}), "1,2,3,4,.. (9)");
}

TEST(BytesText, PicksTheUnit) {
  EXPECT_EQ(bytes_text(0), "0 B");
  EXPECT_EQ(bytes_text(1023), "1023 B");
  EXPECT_EQ(bytes_text(1024), "1.0 KiB");
  EXPECT_EQ(bytes_text(49408), "48.2 KiB");
  EXPECT_EQ(bytes_text((std::int64_t{1} << 20) - 1), "1.0 MiB");
  EXPECT_EQ(bytes_text(std::int64_t{3} << 30), "3.0 GiB");
  EXPECT_EQ(bytes_text(std::numeric_limits<std::int64_t>::max()), "8388608.0 TiB");
}

TEST(VerificationTable, ShowsOfARefusedConfigurationOnlyWhatItIs) {
  const TextTable left_out = verification_table(test::verify_report(), RefusedRows::left_out);
  EXPECT_EQ(left_out.rows().size(), 1U);
  const TextTable shown = verification_table(test::verify_report(), RefusedRows::shown);
  ASSERT_EQ(shown.rows().size(), 5U);
  std::string row;
  for (const TextTable::Cell& cell : shown.rows()[2]) row += cell.text + "|";
  EXPECT_EQ(row, "base|ring|ring=3|allgather|||||REFUSED|||||");
}

TEST(VerificationTable, HasNumbersToSortBy) {
  const std::vector<TextTable::Cell> row = verification_table(test::verify_report(), RefusedRows::shown).rows()[0];
  EXPECT_EQ(row[5].number, 49408.0);
  EXPECT_EQ(row[5].text, "48.2 KiB");
  EXPECT_EQ(row[9].number, 6.8125e-16);
  EXPECT_EQ(row[0].number, std::nullopt);
}

TEST(ConfigurationText, NamesARotationWhereARingRotates) {
  EXPECT_EQ(configuration_text(test::verified_result()), "ring ring=2 allgather rounding float64");
  EXPECT_EQ(configuration_text(test::refused_result("base", "ulysses", "ring=1,ulysses=3", "allgather")),
            "ulysses ulysses=3 rounding float64");
}

}  // namespace
}  // namespace shardproof
