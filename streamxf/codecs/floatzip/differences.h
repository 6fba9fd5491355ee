/* Differences between blocks, a part of _kernel.c, which states what holds for it. docs/format/differences.md is the
 * norm, and differences.py the reference for decoding.
 *
 * Everything is made of sets of elements, which are lists of places here. The elements of a set are told apart by bands
 * of their contexts. A mask says which of 64 elements a band has: in encoding, how many of them lie before a member; in
 * decoding, PDEP scatters the bits of a band's elements. Processors without a fast PDEP do the same bit by bit.
 * Blocks are compared, copied and summed up in pieces, which are then in the nearest cache.
 */

#define INLINE static inline __attribute__((always_inline))
enum { DIFFERENCE_HEAD = 6, SLACK = 64 }; /* bytes: layout, CRC, levels; what a payload may have above half a block */
enum { MAX_BANDS = 6, BAND_COST = 30, ROWS_COST = 40 }; /* more bands would gain one percent; the others are bits */
enum { LEAST = 256, COUNTED = 1 << 12 };                /* elements of a set in bands; those counted to find them */
enum { PIECE = 1 << 14, AHEAD = 1 << 12 };                /* bytes at once; and how far ahead memory is asked for */
static const u64 NEVER = (u64)1 << 62; /* a gap beyond all elements */

typedef struct {
    u8 *at, *end; /* behind which there is room for 8 bytes; once `at` is beyond it, nothing more is written */
    u64 bits;
    int count;
} BitsOut;

typedef struct {
    const u8 *in; /* what lies beyond the end is 0, and found out later: `at` is then beyond it */
    u64 at, end;
} BitsIn;

typedef struct {
    int width, banded;         /* bytes of an element; whether contexts are used */
    size_t count, row, before; /* elements */
    BitsOut out;
    BitsIn in;
    u8 *payload;                          /* with zeros behind it */
    u8 *contexts, *found, *levels, *left; /* the last three for those that changed, `left` up to a certain level */
    u32 *places, *rest, *rows, *others, *ranks[MAX_BANDS];
    u8 *bands[MAX_BANDS]; /* bitmaps, in the same memory */
    const u8 *base;       /* of which the contexts are found when they are needed; or NULL */
} Difference;

INLINE size_t words(size_t bits) { return (bits + 63) / 64; }
INLINE u64 ones_of(u64 word) { return (u64)__builtin_popcountll(word); }
INLINE int bits_of(u32 value) { return value ? top_bit(value) + 1 : 0; }
INLINE u64 low_bits(size_t count) { return count < 64 ? ((u64)1 << count) - 1 : ~(u64)0; }

static size_t difference_work_size(size_t size) { return 45 * size + 16384; }

static void open_difference(Difference *d, u8 *work, size_t size)
{
    size_t bytes = 64 * words(size / (size_t)d->width) + 128;
    d->count = size / (size_t)d->width;
    work += -(uintptr_t)work & 63;
    u8 **of_bytes[] = {&d->contexts, &d->found, &d->levels, &d->left};
    for (int i = 0; i < 4; i++, work += bytes)
        *of_bytes[i] = work;
    u32 **of_numbers[] = {&d->places, &d->rest, &d->rows, &d->others};
    for (int i = 0; i < 4 + MAX_BANDS; i++, work += 4 * bytes)
        *(i < 4 ? of_numbers[i] : &d->ranks[i - 4]) = (u32 *)(void *)work;
    for (int b = 0; b < MAX_BANDS; b++)
        d->bands[b] = (u8 *)d->ranks[b];
    d->payload = work;
}

/* -- what differs between processors ---------------------------------------------------------------------------- */

#if PATHS
#define HAS_PDEP() (HAS_V3() && !__builtin_cpu_is("znver1") && !__builtin_cpu_is("znver2"))
AT_V3 static inline u64 pdep(u64 value, u64 mask) { return __builtin_ia32_pdep_di(value, mask); }
AT_V3 static inline u64 at_most_v3(const u8 *bytes, u8 limit)
{
    Bytes32 a, b;
    memcpy(&a, bytes, 32);
    memcpy(&b, bytes + 32, 32);
    u32 low = (u32)__builtin_ia32_pmovmskb256((Chars32)(a <= limit));
    return low | (u64)(u32)__builtin_ia32_pmovmskb256((Chars32)(b <= limit)) << 32;
}
#else
#define HAS_PDEP() 0
#define pdep(value, mask) 0
#define at_most_v3(bytes, limit) 0
#endif

/* A function for each kind of processor. */
#define BOTH(RESULT, NAME, PARAMETERS, ...) \
    static RESULT NAME##_plain PARAMETERS { return NAME##_any(__VA_ARGS__, 0); } \
    AT_V3 static RESULT NAME##_v3 PARAMETERS { return NAME##_any(__VA_ARGS__, 1); }
#define FOR(V3, NAME) ((V3) ? NAME##_v3 : NAME##_plain)

/* The bits of a value at the places that a mask names. */
INLINE u64 scattered(u64 value, u64 mask, int v3)
{
    if (v3)
        return pdep(value, mask);
    u64 made = 0;
    for (; mask && value; mask &= mask - 1, value >>= 1)
        made |= mask & -mask & -(value & 1);
    return made;
}

/* Which of 64 bytes are at most this. */
INLINE u64 at_most(const u8 *bytes, u8 limit, int v3)
{
    u64 made = v3 ? at_most_v3(bytes, limit) : 0;
    for (int i = 0; i < 64 && !v3; i++)
        made |= (u64)(bytes[i] <= limit) << i;
    return made;
}

/* -- bits */

INLINE void put_bits(BitsOut *w, u64 value, int count) /* up to 56 */
{
    if (w->at > w->end)
        return;
    w->bits |= value << w->count;
    w->count += count;
    wr64(w->at, w->bits);
    w->at += w->count >> 3;
    w->bits >>= w->count & ~7;
    w->count &= 7;
}

INLINE void put_number(BitsOut *w, u32 value)
{
    put_bits(w, (u64)bits_of(value) | (u64)value << 5, 5 + bits_of(value));
}

INLINE void put_gap(BitsOut *w, u32 gap, int k)
{
    u32 zeros = gap >> k;
    for (; zeros > 24; zeros -= 24)
        put_bits(w, 0, 24);
    put_bits(w, (u64)1 << zeros | (gap & low_bits((size_t)k)) << 1 << zeros, (int)zeros + 1 + k);
}

INLINE u64 peek_bits(const u8 *in, u64 at) { return rd64(in + (at >> 3)) >> (at & 7); } /* 57 or more */
INLINE u64 fetch_bits(const u8 *in, u64 at) /* 64 */
{
    return peek_bits(in, at) | (u64)in[(at >> 3) + 8] << 1 << (63 - (at & 7));
}

INLINE u32 take(BitsIn *r, int count)
{
    u32 value = (u32)(peek_bits(r->in, r->at < r->end ? r->at : r->end) & low_bits((size_t)count));
    r->at += (u64)count;
    return value;
}

INLINE u32 take_number(BitsIn *r) { return take(r, (int)take(r, 5)); }

INLINE u64 take_gap(BitsIn *r, int k)
{
    u64 zeros = 0, next;
    for (; !(next = peek_bits(r->in, r->at)); zeros += 57)
        if ((r->at += 57) >= r->end)
            return r->at = r->end + 1, NEVER;
    int more = __builtin_ctzll(next), used = more + 1;
    next = used + k > 57 ? peek_bits(r->in, r->at + (u64)used) : next >> more >> 1;
    r->at += (u64)(used + k);
    return r->at > r->end ? NEVER : ((zeros + (u64)more) << k) + (next & low_bits((size_t)k));
}

/* -- elements */

/* A loop for each width, in which it is a constant. */
#define BY_WIDTH(CALL, ...) \
    (d->width == 4 ? CALL(__VA_ARGS__, 4) : d->width == 2 ? CALL(__VA_ARGS__, 2) : CALL(__VA_ARGS__, 1))

INLINE u32 element(const u8 *block, size_t i, int width)
{
    return width == 4 ? rd32(block + 4 * i) : width == 2 ? rd16(block + 2 * i) : block[i];
}

/* The 8 bits beneath the sign: of a float, its exponent or more. */
INLINE u8 context(u32 element, int width) { return (u8)(width == 1 ? element << 1 : element >> (8 * width - 9)); }

INLINE void find_contexts(const u8 *RESTRICT base, u8 *RESTRICT contexts, size_t n, int width)
{
    for (size_t i = 0; i < n; i++)
        contexts[i] = context(element(base, i, width), width);
}

/* -- sets */

/* List where the bits of a word are, from `from` on; `places` has room for four more. */
INLINE u32 *list_places(u64 left, size_t from, u32 *places)
{
    u64 more = ones_of(left);
    for (u64 k = 0; k < 4; k++, left &= left - 1) /* without a look at how many there are */
        places[k] = (u32)from + (u32)__builtin_ctzll(left | (u64)1 << 63);
    for (u64 k = 4; k < more; k++, left &= left - 1)
        places[k] = (u32)from + (u32)__builtin_ctzll(left);
    return places + more;
}

/* Bits that m of n elements take, about; and the k with which they do. */
static u64 cost_of(u64 m, u64 n, int *k)
{
    m = m > n - m ? n - m : m;
    u64 best = m ? n : 0, cost;
    *k = 0;
    for (int next = 1; m && (cost = m * (u64)next + m / 2 + ((n - m) >> next)) < best; next++)
        best = cost, *k = next;
    return best;
}

/* Cut the contexts into bands, beginning with one for each, by joining the two that gain least by being apart. Returns
 * how many there are. */
static int cut_bands(const u8 *contexts, size_t n, const u32 *places, size_t held, u8 *cuts)
{
    struct { u64 in, of, cost, both; u8 end; } band[257]; /* `both`: together with the next one */
    size_t step[2] = {n / COUNTED + 1, held / COUNTED + 1};
    u32 counts[2][256] = {{0}};
    int bands = 0, k;
    memset(cuts, 255, MAX_BANDS);
    if (!contexts || n < LEAST || !held || held == n)
        return 1;
    for (size_t g = 0; g < words(n); g += step[0])
        for (size_t i = 64 * g; i < smaller(n, 64 * g + 64); i++)
            counts[0][contexts[i]]++;
    for (size_t c = 0; c < held; c += step[1])
        counts[1][contexts[places[c]]]++;
    for (int c = 0; c < 256; c++) {
        u64 of = counts[0][c] * step[0], in = counts[1][c] * step[1];
        of = of > in ? of : in;
        band[bands].in = in, band[bands].of = of, band[bands].cost = cost_of(in, of, &k), band[bands].end = (u8)c;
        bands += of > 0;
    }
    for (int best = 0, from = 0, to = bands; ; from = best ? best - 1 : 0, to = best + 1) {
        for (int b = from; b < to && b + 1 < bands; b++)
            band[b].both = cost_of(band[b].in + band[b + 1].in, band[b].of + band[b + 1].of, &k);
        u64 least = 2 * NEVER;
        for (int b = 0; b + 1 < bands; b++)
            if (NEVER + band[b].both - band[b].cost - band[b + 1].cost < least)
                best = b, least = NEVER + band[b].both - band[b].cost - band[b + 1].cost;
        if (bands == 1 || (bands <= MAX_BANDS && least > NEVER + BAND_COST))
            break;
        band[best + 1].in += band[best].in, band[best + 1].of += band[best].of, band[best + 1].cost = band[best].both;
        memmove(&band[best], &band[best + 1], (size_t)(--bands - best) * sizeof *band);
    }
    for (int b = 0; b + 1 < bands; b++)
        cuts[b] = band[b].end;
    return bands;
}

/* Which of 64 elements are in each band. There are always as many bands, of which the last may be empty. */
INLINE void find_masks(const u8 *contexts, u64 all, const u8 *cuts, u64 *masks, int v3)
{
    u64 before = 0;
    for (int b = 0; b < MAX_BANDS; b++) {
        u64 below = b + 1 < MAX_BANDS ? at_most(contexts, cuts[b], v3) & all : all;
        masks[b] = below & ~before;
        before = below;
    }
}

/* Find which ones the members are of the elements of their bands, and the sizes of these. */
INLINE void rank_members(Difference *d, const u8 *contexts, size_t n, const u32 *places, size_t m, const u8 *limits,
                         u64 *sizes, u64 *held, int v3)
{
    enum { SOME = 64 };
    u64 masks[SOME][MAX_BANDS], at[MAX_BANDS] = {0};
    u32 before[SOME][MAX_BANDS], *to[MAX_BANDS];
    u8 cuts[MAX_BANDS], band[256];
    size_t c = 0;
    memcpy(cuts, limits, sizeof cuts);
    memcpy(to, d->ranks, sizeof to);
    for (int i = 0, b = 0; i < 256; i++)
        band[i] = (u8)(b += b + 1 < MAX_BANDS && i > cuts[b]);
    for (size_t g = 0; g < words(n); g += SOME) {
        for (size_t h = 0; h < smaller(SOME, words(n) - g); h++) {
            find_masks(contexts + 64 * (g + h), low_bits(n - 64 * (g + h)), cuts, masks[h], v3);
            for (int b = 0; b < MAX_BANDS; b++) {
                before[h][b] = (u32)at[b];
                at[b] += ones_of(masks[h][b]);
            }
        }
        for (; c < m && places[c] < 64 * (g + SOME); c++) {
            size_t h = places[c] / 64 - g, b = band[contexts[places[c]]];
            *to[b]++ = before[h][b] + (u32)ones_of(masks[h][b] & low_bits(places[c] & 63));
        }
    }
    for (int b = 0; b < MAX_BANDS; b++)
        sizes[b] = at[b], held[b] = (u64)(to[b] - d->ranks[b]);
}

/* List those of n that are not among m others; `list` has room for four more. */
INLINE const u32 *list_others(const u32 *others, u32 m, u32 n, u32 *list)
{
    u32 *to = list;
    for (u32 i = 0, next = 0, end; i <= m; i++, to += end - next, next = end + 1) {
        end = i < m ? others[i] : n;
        for (u32 k = 0; k < 4; k++)
            to[k] = next + k;
        for (u32 k = 4; k < end - next; k++)
            to[k] = next + k;
    }
    return list;
}

/* Write which of n elements are members: m of them, at these places. */
INLINE int write_set_any(Difference *d, const u8 *contexts, size_t n, const u32 *places, size_t m, int v3)
{
    u8 cuts[MAX_BANDS];
    u64 sizes[MAX_BANDS] = {n}, held[MAX_BANDS] = {m};
    BitsOut w = d->out;
    int bands = cut_bands(contexts, n, places, m, cuts), k;
    if (bands > 1)
        rank_members(d, contexts, n, places, m, cuts, sizes, held, v3);
    for (int b = 0; b < bands; b++) {
        const u32 *ranks = bands > 1 ? d->ranks[b] : places;
        u32 size = (u32)sizes[b], in = (u32)held[b], inverted = in > size - in;
        if (inverted)
            ranks = list_others(ranks, in, size, d->others), in = size - in;
        cost_of(in, size, &k);
        put_bits(&w, b + 1 < bands ? 1 | (u64)cuts[b] << 1 : 0, b + 1 < bands ? 9 : 1);
        put_bits(&w, inverted, 1);
        put_number(&w, in);
        put_bits(&w, (u64)k, in ? 5 : 0);
        for (u32 i = 0, next = 0; i < in; next = ranks[i++] + 1)
            put_gap(&w, ranks[i] - next, k);
    }
    d->out = w;
    return 1;
}

/* List so many members of one band, and mark them in a bitmap; gives where the last one ends, or NEVER. */
INLINE u64 take_places(BitsIn *r, u32 held, int k, size_t n, u32 *RESTRICT places, u64 *RESTRICT bits)
{
    u64 place = 0, next = 0, end = r->end;
    int left = 0; /* of the bits in `next` */
    for (; held; held--, place++) {
        int more = __builtin_ctzll(next | (u64)1 << 63);
        if (more + 1 + k > left) {
            next = peek_bits(r->in, r->at), left = 57;
            more = __builtin_ctzll(next | (u64)1 << 63);
        }
        if (more + 1 + k <= left) {
            place += ((u64)more << k) + (next >> more >> 1 & low_bits((size_t)k));
            next = next >> more >> 1 >> k;
            left -= more + 1 + k;
            r->at += (u64)(more + 1 + k);
        } else {
            place += take_gap(r, k);
            left = 0;
        }
        if (place >= n || r->at > end)
            return NEVER;
        *places++ = (u32)place;
        bits[place >> 6] |= (u64)1 << (place & 63);
    }
    return place;
}

/* List the members, by the bitmaps of bands; and find the sizes of these. */
INLINE u32 *merge_bands(Difference *d, u8 *contexts, size_t n, const u8 *limits, u64 *sizes, u32 *to, int v3)
{
    enum { SOME = 64 };
    const u8 *base = contexts == d->contexts ? d->base : NULL;
    u64 at[MAX_BANDS] = {0}, masks[MAX_BANDS];
    u8 *bits[MAX_BANDS], cuts[MAX_BANDS];
    memcpy(bits, d->bands, sizeof bits);
    memcpy(cuts, limits, sizeof cuts);
    for (size_t g = 0; g < words(n); g++) {
        u64 found = 0;
        if (base && g % SOME == 0)
            BY_WIDTH(find_contexts, base + 64 * g * (size_t)d->width, contexts, smaller(64 * SOME, n - 64 * g));
        find_masks(contexts + 64 * (base ? g % SOME : g), low_bits(n - 64 * g), cuts, masks, v3);
        for (int b = 0; b < MAX_BANDS; b++) {
            u64 size = ones_of(masks[b]), next = peek_bits(bits[b], at[b]);
            if (__builtin_expect(size > 57, 0))
                next = fetch_bits(bits[b], at[b]);
            found |= scattered(next, masks[b], v3);
            at[b] += size;
        }
        to = list_places(found, 64 * g, to);
    }
    memcpy(sizes, at, sizeof at);
    return to;
}

/* Read which of n elements are members, and list their places; NEVER if the set is damaged. */
INLINE u64 read_set_any(Difference *d, u8 *contexts, size_t n, u32 *places, int v3)
{
    u8 cuts[MAX_BANDS], *bits[MAX_BANDS];
    u64 sizes[MAX_BANDS] = {n}, ends[MAX_BANDS] = {0}, held = 0, fill = 0;
    int bands = 0;
    memset(cuts, 255, sizeof cuts);
    memcpy(bits, d->bands, sizeof bits);
    for (int more = 1, low = 0; more; bands++) {
        more = (int)take(&d->in, 1);
        int cut = more ? (int)take(&d->in, 8) : 255;
        if (cut < low || (more && (cut == 255 || bands + 1 == MAX_BANDS || !contexts)))
            return NEVER;
        low = cut + 1;
        cuts[bands] = (u8)cut;
        fill = take(&d->in, 1);
        held = take_number(&d->in);
        int k = held ? (int)take(&d->in, 5) : 0;
        memset(bits[bands], 0, 8 * words(n) + 16);
        if ((ends[bands] = take_places(&d->in, (u32)held, k, n, places, (u64 *)(void *)bits[bands])) == NEVER)
            return NEVER;
        for (size_t g = 0; g < words(n) && fill; g++)
            wr64(bits[bands] + 8 * g, ~rd64(bits[bands] + 8 * g));
    }
    if (bands == 1 && !fill)
        return held;
    u32 *to = places;
    for (int b = bands; b < MAX_BANDS; b++)
        memset(bits[b], 0, 16);
    if (bands > 1)
        to = merge_bands(d, contexts, n, cuts, sizes, to, v3);
    else
        for (size_t g = 0; g < words(n); g++)
            to = list_places(rd64(bits[0] + 8 * g) & low_bits(n - 64 * g), 64 * g, to);
    for (int b = 0; b < bands; b++)
        if (ends[b] > sizes[b])
            return NEVER;
    return (u64)(to - places);
}

BOTH(int, write_set, (Difference *d, const u8 *contexts, size_t n, const u32 *places, size_t m),
     d, contexts, n, places, m)
BOTH(u64, read_set, (Difference *d, u8 *contexts, size_t n, u32 *places), d, contexts, n, places)

/* -- rows */

static size_t count_rows(const Difference *d) { return (d->before + d->count + d->row - 1) / d->row; }

/* Leave out the contexts of rows that nothing changed in, and give the m members places among what is left; or, `back`,
 * their places in the block. Returns how many elements are left. */
static size_t squeeze_rows(Difference *d, size_t rows, size_t m, int back)
{
    size_t to = 0, c = 0;
    for (size_t r = 0; r < rows; r++) {
        size_t begin = d->rows[r] * d->row, end = smaller(begin + d->row - d->before, d->count);
        begin = begin > d->before ? begin - d->before : 0;
        if (d->banded && !back)
            memmove(d->contexts + to, d->contexts + begin, end - begin);
        for (; c < m && d->places[c] < (back ? to + end - begin : end); c++)
            d->places[c] += (u32)(back ? begin - to : to - begin);
        to += end - begin;
    }
    return to;
}

/* Find the rows in which something changed. Returns how many there are; 0 if it does not pay to tell them. */
static size_t find_rows(Difference *d, size_t m)
{
    if (d->row <= 16 || d->row > d->count || d->before >= d->row)
        return 0;
    size_t end = 0, rows = 0;
    int k;
    for (size_t c = 0; c < m; c++)
        if (d->places[c] >= end) {
            d->rows[rows] = (u32)((d->places[c] + d->before) / d->row);
            end = (d->rows[rows++] + 1) * d->row - d->before;
        }
    u64 live = smaller(rows * d->row, d->count), told = cost_of(rows, count_rows(d), &k) + ROWS_COST;
    return cost_of(m, d->count, &k) > cost_of(m, live, &k) + told ? rows : 0;
}

/* -- blocks */

/* Which of up to 64 elements differ. */
INLINE u64 differing(const u8 *a, const u8 *b, int width, int v3)
{
    u8 same[64];
    for (size_t i = 0; i < 64; i++)
        same[i] = element(a, i, width) == element(b, i, width);
    return at_most(same, 0, v3);
}

/* List the elements between two places that changed, `to` be added to; and find the contexts of all. */
INLINE u32 *compare_elements(const u8 *base, const u8 *new, Difference *d, size_t at, size_t end, u32 *to, int v3,
                             int width)
{
    u8 last[2][256] = {{0}};
    for (; at < end; at += 64) {
        const u8 *a = base + at * (size_t)width, *b = new + at * (size_t)width;
        for (int i = 0; i < width; i++) {
            __builtin_prefetch(a + AHEAD + 64 * i);
            __builtin_prefetch(b + AHEAD + 64 * i);
        }
        if (end - at < 64) {
            a = memcpy(last[0], a, (end - at) * (size_t)width);
            b = memcpy(last[1], b, (end - at) * (size_t)width);
        }
        to = list_places(differing(a, b, width, v3), at, to);
        if (d->banded)
            find_contexts(a, d->contexts + at, 64, width);
    }
    return to;
}

/* Of the elements that changed, from c to m, the contexts, the levels, and the rest of the changes. Returns the highest
 * bits of these. */
INLINE u32 find_levels(const u8 *base, const u8 *new, Difference *d, size_t c, size_t m, int width)
{
    u32 all = 1;
    for (; c < m; c++) {
        u32 old = element(base, d->places[c], width), change = element(new, d->places[c], width) - old;
        change <<= 32 - 8 * width;
        u32 sign = -(change >> 31), size = ((change ^ sign) - sign) >> (32 - 8 * width);
        int level = top_bit(size | 1);
        all |= size;
        d->found[c] = context(old, width);
        d->levels[c] = d->left[c] = (u8)level;
        d->rest[c] = (size ^ 1u << level) << 1 | (sign & 1);
    }
    return all;
}

/* Change the elements from c to m that lie before `end`. Returns how many are changed by then. */
INLINE size_t change_elements(u8 *out, Difference *d, size_t c, size_t m, size_t end, int width)
{
    BitsIn r = d->in;
    for (; c < m && d->places[c] < end; c++) {
        int level = d->levels[c];
        u8 *at = out + (size_t)width * d->places[c];
        u32 rest = take(&r, level + 1), sign = -(rest & 1), size = rest >> 1 | 1u << level;
        u32 made = element(at, 0, width) + ((size ^ sign) - sign);
        width == 4 ? wr32(at, made) : width == 2 ? wr16(at, (u16)made) : (void)(*at = (u8)made);
    }
    d->in = r;
    return c;
}

/* The CRC of a block's bytes up to this piece; 0 where the processor has no instruction for it. */
static u32 crc_with(u32 crc, const u8 *piece, size_t size) { return HAS_CRC() ? crc32c(crc, piece, size) : 0; }

INLINE size_t encode_difference_any(Difference *d, const u8 *base, const u8 *new, u8 *out, size_t room, int v3)
{
    size_t n = d->count, m = 0, rows, width = (size_t)d->width;
    u32 all = 1, crc = 0, *places = d->places;
    for (size_t at = 0, end; at < n; at = end) {
        end = smaller(n, at + PIECE / width);
        places = BY_WIDTH(compare_elements, base, new, d, at, end, places, v3);
        size_t before = m;
        m = (size_t)(places - d->places);
        all |= BY_WIDTH(find_levels, base, new, d, before, m);
        crc = crc_with(crc, new + at * width, (end - at) * width);
    }
    memset(out, 0, DIFFERENCE_HEAD);
    out[0] = (u8)(0x80 | (d->banded ? 4 : 0) | d->width >> 1);
    wr32(out + 1, crc);
    d->out = (BitsOut){out + DIFFERENCE_HEAD, out + room, 0, 0};
    if (!m)
        return DIFFERENCE_HEAD;
    put_bits(&d->out, (rows = find_rows(d, m)) > 0, 1);
    if (rows) {
        put_number(&d->out, (u32)d->row);
        put_number(&d->out, (u32)d->before);
        FOR(v3, write_set)(d, NULL, count_rows(d), d->rows, rows);
        n = squeeze_rows(d, rows, m, 0);
    }
    FOR(v3, write_set)(d, d->banded ? d->contexts : NULL, n, d->places, m);
    out[5] = (u8)(top_bit(all) + 1);
    for (size_t now = 0, held, left = m; now + 1 < out[5]; now++, left = held) {
        held = 0;
        for (size_t i = 0; i < left; held += d->left[i++] > now)
            d->places[held] = (u32)i;
        FOR(v3, write_set)(d, d->banded ? d->found : NULL, left, d->places, held);
        for (size_t i = 0; i < held; i++) {
            d->found[i] = d->found[d->places[i]];
            d->left[i] = d->left[d->places[i]];
        }
    }
    BitsOut w = d->out;
    for (size_t c = 0; c < m; c++)
        put_bits(&w, d->rest[c], d->levels[c] + 1);
    put_bits(&w, 0, -w.count & 7);
    return w.at > w.end ? 0 : (size_t)(w.at - out);
}

INLINE int decode_difference_any(Difference *d, const u8 *base, u8 *out, u32 wanted, int levels, int v3)
{
    size_t n = d->count, m = 0, rows = 0, size = n * (size_t)d->width;
    int told = 0;
    u32 crc = 0;
    if (levels) {
        if ((told = (int)take(&d->in, 1))) {
            d->row = take_number(&d->in);
            d->before = take_number(&d->in);
            if (d->before >= d->row || d->row > n)
                return 0;
            if ((rows = FOR(v3, read_set)(d, NULL, count_rows(d), d->rows)) > n)
                return 0;
            if (d->banded)
                BY_WIDTH(find_contexts, base, d->contexts, n);
            n = squeeze_rows(d, rows, 0, 0);
        } else
            d->base = base;
        m = FOR(v3, read_set)(d, d->banded ? d->contexts : NULL, n, d->places);
        if (m > n || d->in.at + m > d->in.end) /* each takes a bit, and one more for each level */
            return 0;
        if (told)
            squeeze_rows(d, rows, m, 1);
        for (size_t c = 0; c < m; c++) {
            d->levels[c] = 0, d->rest[c] = (u32)c;
            d->found[c] = context(element(base, d->places[c], d->width), d->width);
        }
    }
    for (size_t bits = n = m; --levels > 0;) {
        size_t held = FOR(v3, read_set)(d, d->banded ? d->found : NULL, n, d->rows);
        if (held > n || d->in.at + (bits += held) > d->in.end)
            return 0;
        n = held;
        for (size_t i = 0; i < n; i++) {
            d->levels[d->rest[i] = d->rest[d->rows[i]]]++;
            d->found[i] = d->found[d->rows[i]];
        }
    }
    for (size_t at = 0, c = 0, some; at < size; at += some) {
        some = smaller(size - at, PIECE);
        memcpy(out + at, base + at, some);
        c = BY_WIDTH(change_elements, out, d, c, m, (at + some) / (size_t)d->width);
        crc = crc_with(crc, out + at, some);
    }
    if (d->in.at > d->in.end || d->in.end - d->in.at >= 8 || take(&d->in, (int)(d->in.end - d->in.at)))
        return 0;
    return HAS_CRC() && crc == wanted ? 2 : 1;
}

BOTH(size_t, encode_difference, (Difference *d, const u8 *base, const u8 *new, u8 *out, size_t room),
     d, base, new, out, room)
BOTH(int, decode_difference, (Difference *d, const u8 *base, u8 *out, u32 wanted, int levels),
     d, base, out, wanted, levels)

static int decode_difference(const u8 *base, const u8 *payload, size_t stored, u8 *out, size_t size, u8 *work)
{
    if (stored < DIFFERENCE_HEAD || stored > size / 2 + SLACK)
        return 0;
    u8 head[DIFFERENCE_HEAD];
    memcpy(head, payload, DIFFERENCE_HEAD);
    Difference d = {.width = 1 << (head[0] & 3), .banded = head[0] >> 2 & 1};
    if (head[0] >> 3 != 16 || d.width > 4 || size % (size_t)d.width || head[5] > 8 * d.width)
        return 0;
    open_difference(&d, work, size);
    memcpy(d.payload, payload + DIFFERENCE_HEAD, stored - DIFFERENCE_HEAD);
    memset(d.payload + stored - DIFFERENCE_HEAD, 0, 64);
    d.in = (BitsIn){d.payload, 0, 8 * (u64)(stored - DIFFERENCE_HEAD)};
    return FOR(HAS_PDEP(), decode_difference)(&d, base, out, rd32(head + 1), head[5]);
}
