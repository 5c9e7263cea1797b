// Pages as a browser reads them: what stands where, that nothing comes from elsewhere, and that texts of strangers
// remain texts.
#include "reports/html.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "reports/html_page.h"
#include "reports/result_words.h"
#include "tests/reports/sample_reports.h"

namespace shardproof {
namespace {

using testing::HasSubstr;
using testing::Not;

// What is between the style and the script, which are the same on every page.
std::string body_of(const std::string& page) {
  const std::size_t begin = page.find("<body>\n") + 7;
  return page.substr(begin, page.find("<script>") - begin);
}

int count_of(std::string_view text, std::string_view part) {
  int count = 0;
  for (std::size_t at = text.find(part); at != std::string_view::npos; at = text.find(part, at + part.size())) ++count;
  return count;
}

TEST(HtmlPageText, IsADocumentThatLoadsNothing) {
  HtmlPage page("a <title>", "Heading", "All is \"well\".", Tone::good);
  page.facts({{"model", "<Model>"}});
  page.section("Some & more", "some");
  page.paragraph("");
  page.paragraph("para");
  page.items({{.id = "item-1",
               .text = "one\ntwo",
               .places = {{"base", "ring ring=2"}},
               .notes = {"note"},
               .command = "run <it>",
               .details = {{"base: ring", {"more"}, "run that"}}}});
  page.section("Next", "next");
  page.verbatim("int a<b>;\n");
  const std::string text = page.text();
  EXPECT_THAT(text, testing::StartsWith("<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"));
  EXPECT_THAT(text, HasSubstr("content=\"default-src 'none'; style-src 'unsafe-inline';\n"));
  EXPECT_THAT(text, HasSubstr("<title>a &lt;title&gt;</title>"));
  EXPECT_THAT(text, HasSubstr("@media (prefers-color-scheme: dark)"));
  for (const char* from_elsewhere : {"http:", "https:", "src=", "@import", "url(", "<link"})
    EXPECT_THAT(text, Not(HasSubstr(from_elsewhere)));
  EXPECT_EQ(body_of(text),
            "<header>\n<h1>Heading</h1>\n<p class=\"verdict good\">All is &quot;well&quot;.</p>\n"
            "<nav aria-label=\"Contents\">\n<ul>\n<li><a href=\"#some\">Some &amp; more</a></li>\n"
            "<li><a href=\"#next\">Next</a></li>\n</ul>\n</nav>\n</header>\n<main>\n"
            "<dl>\n<div><dt>model</dt><dd class=\"lines\">&lt;Model&gt;</dd></div>\n</dl>\n"
            "<section id=\"some\" aria-labelledby=\"some-heading\">\n"
            "<h2 id=\"some-heading\">Some &amp; more</h2>\n"
            "<p>para</p>\n"
            "<ul class=\"items\">\n<li id=\"item-1\"><p class=\"lines\">one\ntwo</p>\n"
            "<dl>\n<div><dt>base</dt><dd>ring ring=2</dd></div>\n</dl>\n"
            "<ul>\n<li class=\"lines\">note</li>\n</ul>\n"
            "<p>repeat it: <code>run &lt;it&gt;</code></p>\n"
            "<details><summary>base: ring</summary>\n<ul>\n<li class=\"lines\">more</li>\n</ul>\n"
            "<p>repeat it: <code>run that</code></p>\n</details>\n"
            "</li>\n</ul>\n</section>\n"
            "<section id=\"next\" aria-labelledby=\"next-heading\">\n<h2 id=\"next-heading\">Next</h2>\n"
            "<pre tabindex=\"0\">\nint a&lt;b&gt;;\n</pre>\n"
            "</section>\n</main>\n");
}

TEST(HtmlPageTable, LeadsWithTheColumnOfTheFilterAndLeavesEmptyOnesOut) {
  TextTable rows({{"case"}, {"empty"}, {"verdict"}, {"size", TextTable::Align::right}});
  rows.add({{"<a>"}, {""}, {"EXACT", Tone::good}, {.text = "1.0 KiB", .number = 1024.0}});
  rows.add({{"b"}, {""}, {"REFUSED", Tone::faint}, {""}});
  HtmlPage page("", "", "", Tone::plain);
  page.table(rows, {.caption = "A \"table\"", .filter = "verdict", .links = {"", "refused-1"}});
  EXPECT_THAT(
      page.text(),
      HasSubstr(
          "<main>\n"
          "<div class=\"frame\" tabindex=\"0\" role=\"region\" aria-label=\"A &quot;table&quot;\">\n"
          "<table data-filter>\n<caption>A &quot;table&quot;</caption>\n"
          "<thead><tr><th scope=\"col\">verdict</th><th scope=\"col\">case</th><th scope=\"col\" class=\"number\">size"
          "</th></tr></thead>\n<tbody>\n"
          "<tr><td><span class=\"word good\">EXACT</span></td><td>&lt;a&gt;</td>"
          "<td class=\"number\" data-number=\"1024\">1.0 KiB</td></tr>\n"
          "<tr><td><a href=\"#refused-1\"><span class=\"word faint\">REFUSED</span></a></td><td>b</td>"
          "<td class=\"number\"></td></tr>\n"
          "</tbody>\n</table>\n</div>\n"));
}

TEST(HtmlReport, SaysTheLastLineOfTheTerminalFirst) {
  for (const Report& report : {test::verify_report(), test::oracle_report(), test::plan_report()}) {
    const std::string body = body_of(html_report(report, {}));
    const std::string line = closing_of(report).line;
    EXPECT_FALSE(line.empty());
    EXPECT_LT(body.find("\">" + line + "</p>\n"), body.find("<table")) << report.command;
  }
}

TEST(HtmlReport, IsNotGreenWhereTheStatusIsNotZero) {
  const std::string body = body_of(html_report(test::verify_report(), {"case 'big' is refused"}));
  EXPECT_THAT(body, HasSubstr("<p class=\"verdict faint\">Everything that was run is verified"));
  EXPECT_LT(body.find("<li class=\"lines\">case 'big' is refused</li>"), body.find("<table"));
}

TEST(HtmlReport, ShowsAVerification) {
  const std::string body = body_of(html_report(test::verify_report(), {}));
  EXPECT_THAT(body, HasSubstr("<h1>shardproof verify: FluxTransformer2DModel</h1>\n<p class=\"verdict good\">"));
  EXPECT_THAT(body, HasSubstr("<div><dt>run</dt><dd class=\"lines\">float64 on device reference, rounding tier, seed "
                              "7, schedule seed 8</dd>"
                              "</div>\n<div><dt>plan</dt><dd class=\"lines\">default</dd></div>\n"
                              "<div><dt>version</dt><dd class=\"lines\">shardproof 1.2.3, verify</dd></div>\n"
                              "<div><dt>built with</dt><dd class=\"lines\">device:cpu, tier:rounding</dd></div>\n"));
  EXPECT_EQ(count_of(body, "<tr>"), 1 + 5) << "refused rows are shown, too";
  EXPECT_EQ(count_of(body, "<a href=\"#refused-1\">"), 4);
  EXPECT_THAT(body, HasSubstr("<h2 id=\"refused-heading\">REFUSED (4 of 5)</h2>\n<ul class=\"items\">\n"
                              "<li id=\"refused-1\"><p class=\"lines\">axis 1 has 16 entries, which 3 ranks cannot "
                              "divide equally</p>\n<dl>\n"
                              "<div><dt>base</dt><dd>ulysses ulysses=3; ring ring=3 (allgather, alltoall)</dd></div>\n"
                              "<div><dt>big</dt><dd>ring ring=3 (alltoall)</dd></div>\n"));
  EXPECT_THAT(body, HasSubstr("<li class=\"lines\">EXACT: exact arithmetic (--tier exact or all)</li>"));
  EXPECT_THAT(body, HasSubstr("argument 'timestep' of module '' was left whole"));
  EXPECT_THAT(body, HasSubstr("figure: largest difference from the dense run"));
  EXPECT_THAT(body, HasSubstr("weights and inputs are drawn, from seed 7"));
}

TEST(HtmlReport, ShowsEveryDifferenceBeforeTheTable) {
  Report report = test::verify_report();
  report.verifications.resize(2);
  for (VerificationResult& result : report.verifications) {
    result.verdict = Verdict::different;
    result.reason = "wrong";
  }
  report.verifications[0].diagnosis = {"first wrong: here"};
  report.verifications[0].repeat = "shardproof verify x";
  report.verifications[1].diagnosis = {"first wrong: there"};
  report.hypothesis = test::hypothesis();
  report.shrunk = ShrunkResult{.configuration = "text=1; ring", .test = "TEST(A, B) {}\n", .tried = 3, .seconds = 0.5};
  std::string body = body_of(html_report(report, {}));
  EXPECT_THAT(body, HasSubstr("<p class=\"verdict bad\">A difference was found: 2 DIFFERENT"));
  EXPECT_THAT(body, HasSubstr("<p>Hypothesis: CHUNK_LOST (a chunk is lost)"));
  EXPECT_THAT(body, HasSubstr("<details><summary>base: ring ring=2 allgather rounding float64</summary>\n<ul>\n"
                              "<li class=\"lines\">first wrong: here</li>\n</ul>\n"
                              "<p>repeat it: <code>shardproof verify x</code></p>\n</details>\n"
                              "<details><summary>base: ulysses ulysses=3 rounding float64</summary>\n<ul>\n"
                              "<li class=\"lines\">first wrong: there</li>\n"));
  EXPECT_THAT(body, HasSubstr("<pre tabindex=\"0\">\nTEST(A, B) {}\n</pre>"));
  EXPECT_LT(body.find("id=\"different-1\""), body.find("<table"));
  EXPECT_EQ(count_of(body, "<a href=\"#different-1\">"), 2);
  report.verifications.resize(1);
  body = body_of(html_report(report, {}));
  EXPECT_THAT(body, Not(HasSubstr("<details>"))) << "of a single one everything is shown at once";
  EXPECT_THAT(body, HasSubstr("<div><dt>base</dt><dd>ring ring=2 allgather rounding float64</dd></div>"));
  EXPECT_THAT(body, HasSubstr("<li class=\"lines\">first wrong: here</li>"));
}

TEST(HtmlReport, ShowsTheOraclesDifferences) {
  const std::string body = body_of(html_report(test::oracle_report(), {}));
  EXPECT_THAT(body, HasSubstr("<h2 id=\"different-heading\">DISAGREES (1 of 3)</h2>\n<ul class=\"items\">\n"
                              "<li><p class=\"lines\">base, float64 along the trace: error 5.00e-01, allowed 2.0e-05"
                              "</p>\n<ul>\n<li class=\"lines\">first module that differs: 0012:proj_out#0</li>\n"
                              "<li class=\"lines\">8 of 9 entries compared</li>\n"));
  EXPECT_THAT(body, HasSubstr("<li class=\"lines\">exports/tiny, base: 0003:pos_embed#1</li>"));
  EXPECT_THAT(body, HasSubstr("<td><span class=\"word faint\">NOT CHECKED</span></td>"));
}

TEST(HtmlReport, ShowsAPlanAndWhyCasesEnded) {
  Report report = test::plan_report();
  report.plan.push_back(test::split_row());
  report.plan.back().action = "refused";
  report.plan.back().note = "3 does not divide";
  const std::string body = body_of(html_report(report, {"ring is refused"}));
  EXPECT_THAT(body, HasSubstr("<li class=\"lines\">ring is refused</li>"));
  EXPECT_THAT(body, HasSubstr("<p class=\"lines\">refused: 3 does not divide</p>\n<dl>\n"
                              "<div><dt>in</dt><dd>base</dd></div>"));
  EXPECT_EQ(count_of(body, "<tr>"), 1 + 3);
  EXPECT_THAT(body,
              HasSubstr("<div><dt>run</dt><dd class=\"lines\">ring_anything on the mesh ring=2,ulysses=1</dd></div>"));
}

TEST(HtmlReport, ShowsTheProfileOfARun) {
  Report report = test::verify_report();
  report.command = "run";
  report.profile.emplace();
  report.profile->ranks = 2;
  report.profile->steps = 3;
  report.profile->rows.emplace_back();
  report.profile->rows[0].operation = "matmul";
  report.profile->rows[0].bytes = 2048;
  const std::string body = body_of(html_report(report, {}));
  EXPECT_THAT(body, HasSubstr("<h2 id=\"profile-heading\">Profile</h2>\n<p>3 steps on 2 ranks: p50 0.000 ms"));
  EXPECT_THAT(body, HasSubstr("<tr><td>matmul</td><td>-</td>"));
  EXPECT_THAT(body, HasSubstr("<td class=\"number\" data-number=\"2048\">2.0 KiB</td>"));
}

TEST(HtmlReport, LeavesTextsOfStrangersTexts) {
  const std::string hostile = "</p></script><script>alert(1)</script><img src=x onerror=alert(1)>\"'&\x01\xff";
  Report report = test::verify_report();
  report.model = report.plan_name = report.version = hostile;
  report.sources = report.notes = report.not_checked = report.features = {hostile};
  report.verifications.resize(2);
  report.verifications[0].verdict = Verdict::different;
  for (VerificationResult& result : report.verifications) {
    result.case_name = result.mode = result.mesh = result.rotate_method = result.tier = result.dtype = hostile;
    result.device = result.reason = result.repeat = hostile;
    result.diagnosis = {hostile};
    result.skipped_entries = {{hostile, hostile, hostile}};
  }
  report.shrunk = ShrunkResult{.configuration = hostile, .test = hostile};
  const std::string page = html_report(report, {hostile});
  const std::string plain = html_report(test::verify_report(), {});
  EXPECT_EQ(count_of(page, "<script"), count_of(plain, "<script"));
  EXPECT_EQ(count_of(page, "</script"), count_of(plain, "</script"));
  EXPECT_THAT(page, Not(HasSubstr("<img")));
  EXPECT_EQ(page.find('\x01'), std::string::npos);
  EXPECT_THAT(page, HasSubstr("&lt;/p&gt;&lt;/script&gt;&lt;script&gt;alert(1)"));
  EXPECT_THAT(page, HasSubstr("&quot;'&amp;\\x01\\xff"));
}

}  // namespace
}  // namespace shardproof
