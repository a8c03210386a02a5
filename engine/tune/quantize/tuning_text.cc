// Written for this purpose: some of everything a model is asked about, long enough for several pages of a
// cache.
#include "engine/tune/quantize/tune_kv.h"

namespace oar {

std::string_view tuning_text() {
  static constexpr char kText[] =
      R"(The harbour had been quiet since the ferry stopped running. On weekday mornings the only sound was the crane at the far pier, lifting containers that nobody in the town would ever open, and the gulls that followed it from one end of the quay to the other. Marta kept the ticket office open anyway. She swept the floor, put out the timetable, and wrote the tide and the wind on the blackboard, because somebody had always done so, and because the old men who came in to read it had nowhere else to go.

"Will there be a boat in spring?" asked the tallest of them, as he did every Monday.
"They have not said no," she answered. "When they say no, I shall write it on the board."
He nodded, as if this were news, and went to tell the others.

A heat pump moves heat from a cold place to a warm one by letting a fluid evaporate at low pressure and condense at high pressure. The work put into the compressor is less than the heat delivered, so the ratio of the two, called the coefficient of performance, is above one. For a source at 5 degrees Celsius and a sink at 35 degrees, the theoretical limit is 308.15 / (308.15 - 278.15) = 10.27; machines that are sold today reach between 3.5 and 5. When it freezes outside, ice forms on the outer coil, and the cycle has to be reversed for a few minutes every hour to melt it.

def moving_average(values, width):
    """Mean of each run of `width` consecutive values."""
    if width < 1 or width > len(values):
        raise ValueError(f"width {width} is not between 1 and {len(values)}")
    total = sum(values[:width])
    means = [total / width]
    for k in range(width, len(values)):
        total += values[k] - values[k - width]
        means.append(total / width)
    return means

| month | rain, mm | mean temperature |
|-------|---------:|-----------------:|
| March |     41.2 |              6.8 |
| April |     38.9 |             10.1 |
| May   |     55.0 |             14.7 |
| June  |     61.3 |             17.9 |

Question: A train leaves at 9:40 and travels 210 kilometres at 84 kilometres per hour. When does it arrive?
Answer: It needs 210 / 84 = 2.5 hours, which is two hours and thirty minutes, so it arrives at 12:10.

Question: Name three rivers that flow into the Black Sea.
Answer: The Danube, the Dniester and the Dnieper.

Dear Ms Okafor, thank you for your letter of 14 February. We have checked the meter readings for the second floor and found that the figures for October and November were exchanged. A corrected bill of 182.40 is enclosed; the difference has been credited to your account. If anything remains unclear, please call me on any weekday between eight and noon. Yours sincerely, J. Lindqvist

Once there was a girl who could not find her red shoe. She looked under the bed. She looked behind the door. She asked the cat, but the cat only yawned. Then her little brother came in from the garden with mud on his knees, and on his head, like a hat, was the red shoe. "I am a king," he said. The girl laughed so much that she forgot to be cross, and they both went out to look for the other one.

Die Brücke wurde 1911 gebaut und zweimal erneuert. Wer heute hinübergeht, sieht im Süden die Mühle und im Norden den Kirchturm; dazwischen liegt der Fluss, der im Sommer so flach ist, dass Kinder ihn zu Fuß überqueren. Le marché a lieu le samedi, de sept heures à midi, sur la place derrière la gare. El tren de las nueve llega casi siempre tarde, pero nadie se queja.

struct Node { int key; struct Node *left, *right; };
static int depth(const struct Node *n) {
  if (n == NULL) return 0;
  int l = depth(n->left), r = depth(n->right);
  return 1 + (l > r ? l : r);
}

In the second year of the study the two groups were compared again. Of 412 participants, 371 returned (90.0 percent); of these, 188 had kept the diary. The difference between the groups was 0.31 points (95 percent interval 0.12 to 0.50), smaller than in the first year, when it had been 0.47. The authors name three limits: the sample came from one city, the diary was not checked, and those who left had been older on average. They conclude that the method is worth a larger trial, not that it works.

HTTP/1.1 404 Not Found
Content-Type: application/json
{"error": {"code": 404, "message": "no such item", "details": [{"field": "id", "value": "a-1027"}]}}

He set the kettle on the stove, sat down at the window and unfolded the map once more. The path he wanted was not on it. It left the road, if the shepherd was right, at the third bend above the chapel, went down to the stream, crossed it where two stones stood close together, and climbed through the larches on the other side. An hour, the shepherd had said; but shepherds have long legs. He folded the map, and when the water boiled he had already decided to go.
)";
  return std::string_view(kText, sizeof kText - 1);
}

}  // namespace oar
