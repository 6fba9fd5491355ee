/* Differences between blocks, a part of _kernel.c, which states what holds for it. docs/format/differences.md is the
 * norm, and differences.py the reference for decoding.
 *
 * Everything is made of sets of elements, which are bitmaps here. The elements of a set are told apart by bands of
 * their contexts. A mask says which of 64 elements a band has; PEXT gathers the bits of a band's elements, and PDEP
 * scatters them again. Processors without a fast PEXT do the same bit by bit.
 */

#define INLINE static inline __attribute__((always_inline))
enum { DIFFERENCE_HEAD = 6, SLACK = 64 }; /* bytes: layout, CRC, levels; what a payload may have above half a block */
enum { MAX_BANDS = 6, BAND_COST = 30, ROWS_COST = 40 }; /* more bands would gain one percent; the others are bits */
enum { LEAST = 256, COUNTED = 1 << 12 };                /* elements of a set in bands; those counted to find them */
static const u64 ONES = 0x0101010101010101u;
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
    u32 *places, *gaps;
    u64 *members, *rows, *bands, *higher;
} Difference;

INLINE size_t words(size_t bits) { return (bits + 63) / 64; }
INLINE u64 ones_of(u64 word) { return (u64)__builtin_popcountll(word); }
INLINE int bits_of(u32 value) { return value ? top_bit(value) + 1 : 0; }
INLINE u64 low_bits(size_t count) { return count < 64 ? ((u64)1 << count) - 1 : ~(u64)0; }
INLINE u64 *band_of(const Difference *d, size_t n, int b) { return d->bands + (size_t)b * (words(n) + 2); }

static size_t difference_work_size(size_t size) { return 17 * size + 16384; }

static void open_difference(Difference *d, u8 *work, size_t size)
{
    size_t bytes = 64 * words(size / (size_t)d->width) + 128, bits = bytes / 8 + 64;
    d->count = size / (size_t)d->width;
    work += -(uintptr_t)work & 63;
    u8 **of_bytes[] = {&d->contexts, &d->found, &d->levels, &d->left};
    for (int i = 0; i < 4; i++, work += bytes)
        *of_bytes[i] = work;
    d->places = (u32 *)(void *)work, d->gaps = d->places + bytes;
    d->members = (u64 *)(void *)(d->gaps + bytes);
    d->rows = d->members + bits / 8;
    d->bands = d->rows + bits / 8;
    d->higher = d->bands + MAX_BANDS * bits / 8;
    d->payload = (u8 *)d->higher + size + 512; /* a bitmap for each level, of which there are as many as bits */
}

/* -- what differs between processors ---------------------------------------------------------------------------- */

#if PATHS
#define HAS_PEXT() (HAS_V3() && !__builtin_cpu_is("znver1") && !__builtin_cpu_is("znver2"))
AT_V3 static inline u64 pext(u64 value, u64 mask) { return __builtin_ia32_pext_di(value, mask); }
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
#define HAS_PEXT() 0
#define pext(value, mask) 0
#define pdep(value, mask) 0
#define at_most_v3(bytes, limit) 0
#endif

/* A function for each kind of processor. */
#define BOTH(RESULT, NAME, PARAMETERS, ...) \
    static RESULT NAME##_plain PARAMETERS { return NAME##_any(__VA_ARGS__, 0); } \
    AT_V3 static RESULT NAME##_v3 PARAMETERS { return NAME##_any(__VA_ARGS__, 1); }

/* The bits of a value that a mask names, side by side; and back to their places. */
INLINE u64 gathered(u64 value, u64 mask, int v3)
{
    if (v3)
        return pext(value, mask);
    u64 made = 0;
    for (u64 left = value & mask; left; left &= left - 1)
        made |= (u64)1 << ones_of(mask & ((left & -left) - 1));
    return made;
}
INLINE u64 scattered(u64 value, u64 mask, int v3)
{
    if (v3)
        return pdep(value, mask);
    u64 made = 0;
    for (; mask && value; mask &= mask - 1, value >>= 1)
        made |= mask & -mask & -(value & 1);
    return made;
}

/* The bytes of those of 64 elements that are members, side by side; and back, each raised by one, with 0 in between. */
INLINE u8 *gather_bytes(u8 *to, const u8 *from, u64 members, int v3)
{
    for (int i = 0; i < 64; i += 8, to += ones_of(members & 255), members >>= 8)
        wr64(to, gathered(rd64(from + i), scattered(members & 255, ONES, v3) * 255, v3));
    return to;
}
INLINE const u8 *scatter_bytes(u8 *to, const u8 *from, u64 members, int v3)
{
    for (int i = 0; i < 64; i += 8, from += ones_of(members & 255), members >>= 8) {
        u64 ones = scattered(members & 255, ONES, v3);
        wr64(to + i, scattered(rd64(from), ones * 255, v3) + ones);
    }
    return from;
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

/* -- sets */

INLINE size_t count_bits(const u64 *bitmap, size_t count)
{
    u64 held = 0;
    for (size_t g = 0; g < words(count); g++)
        held += ones_of(bitmap[g]);
    return held;
}

/* Where the bits of a bitmap are that differ from `fill`; `places` has room for four more. */
INLINE size_t list_places(const u64 *bitmap, size_t count, u64 fill, u32 *RESTRICT places)
{
    u32 *to = places;
    for (size_t g = 0; g < words(count); g++) {
        u64 left = (bitmap[g] ^ fill) & low_bits(count - 64 * g), more = ones_of(left);
        for (u64 k = 0; k < 4; k++, left &= left - 1) /* without a look at how many there are */
            to[k] = (u32)(64 * g) + (u32)__builtin_ctzll(left | (u64)1 << 63);
        for (u64 k = 4; k < more; k++, left &= left - 1)
            to[k] = (u32)(64 * g) + (u32)__builtin_ctzll(left);
        to += more;
    }
    return (size_t)(to - places);
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
static int cut_bands(const u8 *contexts, size_t n, const u64 *members, size_t held, u8 *cuts)
{
    struct { u64 in, of, cost, both; u8 end; } band[257]; /* `both`: together with the next one */
    size_t step[2] = {n / COUNTED + 1, held / COUNTED + 1};
    u32 counts[2][256] = {{0}};
    int bands = 0, k;
    memset(cuts, 255, MAX_BANDS);
    if (!contexts || n < LEAST || !held || held == n)
        return 1;
    for (int which = 0; which < 2; which++)
        for (size_t g = 0; g < words(n); g += step[which])
            for (u64 left = which ? members[g] : low_bits(n - 64 * g); left; left &= left - 1)
                counts[which][contexts[64 * g + (size_t)__builtin_ctzll(left)]]++;
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

/* Split the members into a bitmap of each band, of its own elements; or, `back`, make members of these, inverted by
 * `fill`. There are always as many bands, of which the last may be empty. Gives their sizes. */
INLINE void split_bands(Difference *d, const u8 *contexts, size_t n, u64 *members, const u8 *limits, const u64 *fill,
                        u64 *sizes, int back, int v3)
{
    u64 at[MAX_BANDS] = {0}, kept[MAX_BANDS] = {0};
    u8 *bits[MAX_BANDS], cuts[MAX_BANDS];
    memcpy(cuts, limits, sizeof cuts);
    for (int b = 0; b < MAX_BANDS; b++)
        bits[b] = (u8 *)band_of(d, n, b);
    for (size_t g = 0; g < words(n); g++) {
        u64 all = low_bits(n - 64 * g), before = 0, found = 0;
        for (int b = 0; b < MAX_BANDS; b++) {
            u64 below = b + 1 < MAX_BANDS ? at_most(contexts + 64 * g, cuts[b], v3) & all : all, mask = below & ~before;
            u64 begin = at[b], shift = begin & 63;
            before = below;
            at[b] += ones_of(mask);
            if (back)
                found |= scattered(fetch_bits(bits[b], begin) ^ fill[b], mask, v3);
            else {
                u64 some = gathered(members[g], mask, v3);
                wr64(bits[b] + (begin >> 6 << 3), kept[b] |= some << shift);
                kept[b] = (begin ^ at[b]) >> 6 ? some >> 1 >> (63 - shift) : kept[b];
            }
        }
        if (back)
            members[g] = found;
    }
    for (int b = 0; b < MAX_BANDS && !back; b++)
        wr64(bits[b] + (at[b] >> 6 << 3), kept[b]);
    memcpy(sizes, at, sizeof at);
}

/* Write which of n elements are members. */
INLINE int write_set_any(Difference *d, const u8 *contexts, size_t n, u64 *members, int v3)
{
    u8 cuts[MAX_BANDS];
    u64 sizes[MAX_BANDS] = {n};
    BitsOut w = d->out;
    int bands = cut_bands(contexts, n, members, count_bits(members, n), cuts), k;
    if (bands > 1)
        split_bands(d, contexts, n, members, cuts, NULL, sizes, 0, v3);
    for (int b = 0; b < bands; b++) {
        const u64 *bits = bands > 1 ? band_of(d, n, b) : members;
        size_t size = sizes[b], held = count_bits(bits, size);
        u64 fill = -(u64)(held > size - held);
        held = fill ? size - held : held;
        cost_of(held, size, &k);
        put_bits(&w, b + 1 < bands ? 1 | (u64)cuts[b] << 1 : 0, b + 1 < bands ? 9 : 1);
        put_bits(&w, fill & 1, 1);
        put_number(&w, (u32)held);
        put_bits(&w, (u64)k, held ? 5 : 0);
        list_places(bits, size, fill, d->gaps);
        for (size_t i = 0, next = 0; i < held; next = d->gaps[i++] + 1)
            put_gap(&w, d->gaps[i] - (u32)next, k);
    }
    d->out = w;
    return 1;
}

/* Read which of n elements are members; 0 if the set is damaged. */
INLINE int read_set_any(Difference *d, const u8 *contexts, size_t n, u64 *members, int v3)
{
    u8 cuts[MAX_BANDS];
    u64 fill[MAX_BANDS] = {0}, sizes[MAX_BANDS] = {n}, ends[MAX_BANDS] = {0};
    int bands = 0;
    BitsIn r = d->in;
    memset(cuts, 255, sizeof cuts);
    for (int more = 1, low = 0; more; bands++) {
        more = (int)take(&r, 1);
        int cut = more ? (int)take(&r, 8) : 255;
        if (cut < low || (more && (cut == 255 || bands + 1 == MAX_BANDS || !contexts)))
            return 0;
        low = cut + 1;
        cuts[bands] = (u8)cut;
        fill[bands] = -(u64)take(&r, 1);
        u64 *bits = bands || more ? band_of(d, n, bands) : members, place = 0, held = take_number(&r);
        int k = held ? (int)take(&r, 5) : 0;
        memset(bits, 0, 8 * words(n) + 16);
        for (; held; held--, place++) {
            place += take_gap(&r, k);
            if (place >= n)
                return 0;
            bits[place >> 6] |= (u64)1 << (place & 63);
        }
        ends[bands] = place;
    }
    d->in = r;
    for (int b = bands; bands > 1 && b < MAX_BANDS; b++)
        memset(band_of(d, n, b), 0, 16);
    if (bands > 1)
        split_bands(d, contexts, n, members, cuts, fill, sizes, 1, v3);
    else
        for (size_t g = 0; g < words(n); g++)
            members[g] ^= fill[0] & low_bits(n - 64 * g);
    for (int b = 0; b < bands; b++)
        if (ends[b] > sizes[b])
            return 0;
    return 1;
}

BOTH(int, write_set, (Difference *d, const u8 *contexts, size_t n, u64 *members), d, contexts, n, members)
BOTH(int, read_set, (Difference *d, const u8 *contexts, size_t n, u64 *members), d, contexts, n, members)
#define WRITE_SET(...) (v3 ? write_set_v3 : write_set_plain)(__VA_ARGS__)
#define READ_SET(...) (v3 ? read_set_v3 : read_set_plain)(__VA_ARGS__)

/* -- rows */

static size_t count_rows(const Difference *d) { return (d->before + d->count + d->row - 1) / d->row; }

/* Leave out the contexts of rows that nothing changed in, and find the members among what is left; or, `back`, find
 * the places of the m members. Returns how many elements are left. */
static size_t squeeze_rows(Difference *d, size_t m, int back)
{
    size_t to = 0, c = 0;
    for (size_t g = 0; g < words(count_rows(d)); g++)
        for (u64 left = d->rows[g]; left; left &= left - 1) {
            size_t begin = (64 * g + (size_t)__builtin_ctzll(left)) * d->row, end = begin + d->row - d->before;
            begin = begin > d->before ? begin - d->before : 0;
            size_t shift = begin - to, size = (end = smaller(end, d->count)) - begin;
            if (d->banded && !back)
                memmove(d->contexts + to, d->contexts + begin, size);
            for (; back && c < m && d->places[c] < to + size; c++)
                d->places[c] += (u32)shift;
            for (; !back && c < m && d->places[c] < end; c++)
                d->members[(d->places[c] - shift) >> 6] |= (u64)1 << ((d->places[c] - shift) & 63);
            to += size;
        }
    return to;
}

/* Find the rows in which something changed, and whether it pays to tell them. */
static int find_rows(Difference *d, size_t m)
{
    if (d->row <= 16 || d->row > d->count || d->before >= d->row)
        return 0;
    size_t end = 0, alive = 0;
    int k;
    memset(d->rows, 0, 8 * words(count_rows(d)));
    for (size_t c = 0; c < m; c++)
        if (d->places[c] >= end) {
            size_t row = (d->places[c] + d->before) / d->row;
            d->rows[row >> 6] |= (u64)1 << (row & 63);
            end = (row + 1) * d->row - d->before;
            alive++;
        }
    u64 live = smaller(alive * d->row, d->count);
    return cost_of(m, d->count, &k) > cost_of(m, live, &k) + cost_of(alive, count_rows(d), &k) + ROWS_COST;
}

/* -- blocks */

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

/* Which elements changed; and the contexts of all. */
INLINE void compare_elements(const u8 *base, const u8 *new, Difference *d, int v3, int width)
{
    for (size_t g = 0; g < words(d->count); g++) {
        size_t at = 64 * g * (size_t)width, n = d->count - 64 * g;
        const u8 *a = base + at, *b = new + at;
        u8 same[64], last[2][256];
        if (n < 64) {
            memset(last, 0, sizeof last);
            a = memcpy(last[0], a, n * (size_t)width);
            b = memcpy(last[1], b, n * (size_t)width);
        }
        for (size_t i = 0; i < 64; i++)
            same[i] = element(a, i, width) == element(b, i, width);
        d->members[g] = at_most(same, 0, v3);
        if (d->banded)
            find_contexts(a, d->contexts + 64 * g, 64, width);
    }
}

/* Of the m elements that changed the contexts, the levels, and the rest of the changes in place of the places. Returns
 * the highest level. */
INLINE int find_levels(const u8 *base, const u8 *new, Difference *d, size_t m, int width)
{
    u32 all = 1;
    for (size_t c = 0; c < m; c++) {
        u32 old = element(base, d->places[c], width), change = element(new, d->places[c], width) - old;
        change <<= 32 - 8 * width;
        u32 sign = -(change >> 31), size = ((change ^ sign) - sign) >> (32 - 8 * width);
        int level = top_bit(size | 1);
        all |= size;
        d->found[c] = context(old, width);
        d->levels[c] = d->left[c] = (u8)level;
        d->places[c] = (size ^ 1u << level) << 1 | (sign & 1);
    }
    return top_bit(all);
}

INLINE void change_elements(u8 *out, Difference *d, size_t m, int width)
{
    BitsIn r = d->in;
    for (size_t c = 0; c < m; c++) {
        int level = d->levels[c];
        u8 *at = out + (size_t)width * d->places[c];
        u32 rest = take(&r, level + 1), sign = -(rest & 1), size = rest >> 1 | 1u << level;
        u32 made = element(at, 0, width) + ((size ^ sign) - sign);
        width == 4 ? wr32(at, made) : width == 2 ? wr16(at, (u16)made) : (void)(*at = (u8)made);
    }
    d->in = r;
}

INLINE size_t encode_difference_any(Difference *d, const u8 *base, const u8 *new, u8 *out, size_t room, int v3)
{
    size_t n = d->count, m;
    BY_WIDTH(compare_elements, base, new, d, v3);
    memset(out, 0, DIFFERENCE_HEAD);
    out[0] = (u8)(0x80 | (d->banded ? 4 : 0) | d->width >> 1);
    d->out = (BitsOut){out + DIFFERENCE_HEAD, out + room, 0, 0};
    if (!(m = list_places(d->members, n, 0, d->places)))
        return DIFFERENCE_HEAD;
    int rows = find_rows(d, m);
    put_bits(&d->out, (u64)rows, 1);
    if (rows) {
        put_number(&d->out, (u32)d->row);
        put_number(&d->out, (u32)d->before);
        WRITE_SET(d, NULL, count_rows(d), d->rows);
        memset(d->members, 0, 8 * words(n));
        n = squeeze_rows(d, m, 0);
    }
    WRITE_SET(d, d->banded ? d->contexts : NULL, n, d->members);
    int highest = BY_WIDTH(find_levels, base, new, d, m);
    out[5] = (u8)(highest + 1);
    n = m;
    for (int level = 0; level < highest; level++) {
        u8 *found = d->found, *left = d->left;
        for (size_t g = 0; g < words(n); g++)
            d->members[g] = ~at_most(left + 64 * g, (u8)level, v3) & low_bits(n - 64 * g);
        WRITE_SET(d, d->banded ? found : NULL, n, d->members);
        for (size_t g = 0; g < words(n); g++) {
            found = gather_bytes(found, d->found + 64 * g, d->members[g], v3);
            left = gather_bytes(left, d->left + 64 * g, d->members[g], v3);
        }
        n = (size_t)(left - d->left);
    }
    BitsOut w = d->out;
    for (size_t c = 0; c < m; c++)
        put_bits(&w, d->places[c], d->levels[c] + 1);
    put_bits(&w, 0, -w.count & 7);
    return w.at > w.end ? 0 : (size_t)(w.at - out);
}

INLINE int decode_difference_any(Difference *d, const u8 *base, u8 *out, int levels, int v3)
{
    size_t n = d->count, m, counts[32];
    u64 *bitmaps[33] = {d->higher};
    int kept = 0, rows;
    memcpy(out, base, n * (size_t)d->width);
    if (!levels)
        return d->in.end == 0;
    if (d->banded)
        BY_WIDTH(find_contexts, base, d->contexts, n);
    if ((rows = (int)take(&d->in, 1))) {
        d->row = take_number(&d->in);
        d->before = take_number(&d->in);
        if (d->before >= d->row || d->row > n || !READ_SET(d, NULL, count_rows(d), d->rows))
            return 0;
        n = squeeze_rows(d, 0, 0);
    }
    if (!READ_SET(d, d->banded ? d->contexts : NULL, n, d->members))
        return 0;
    m = list_places(d->members, n, 0, d->places);
    if (rows)
        squeeze_rows(d, m, 1);
    for (size_t c = 0; d->banded && c < m; c++)
        d->found[c] = context(element(base, d->places[c], d->width), d->width);
    n = m;
    for (; kept + 1 < levels; kept++) { /* forth from level to level, and back again */
        u64 *higher = bitmaps[kept];
        u8 *found = d->found;
        if (!READ_SET(d, d->banded ? found : NULL, n, higher))
            return 0;
        for (size_t g = 0; d->banded && g < words(n); g++)
            found = gather_bytes(found, d->found + 64 * g, higher[g], v3);
        counts[kept] = n;
        bitmaps[kept + 1] = higher + words(n);
        n = count_bits(higher, n);
    }
    memset(d->levels, 0, n);
    while (kept--) {
        const u8 *from = d->levels;
        for (size_t g = 0; g < words(counts[kept]); g++)
            from = scatter_bytes(d->left + 64 * g, from, bitmaps[kept][g], v3);
        u8 *made = d->left;
        d->left = d->levels, d->levels = made;
    }
    BY_WIDTH(change_elements, out, d, m);
    return d->in.at <= d->in.end && d->in.end - d->in.at < 8 && !take(&d->in, (int)(d->in.end - d->in.at));
}

BOTH(size_t, encode_difference, (Difference *d, const u8 *base, const u8 *new, u8 *out, size_t room),
     d, base, new, out, room)
BOTH(int, decode_difference, (Difference *d, const u8 *base, u8 *out, int levels), d, base, out, levels)

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
    return (HAS_PEXT() ? decode_difference_v3 : decode_difference_plain)(&d, base, out, head[5]);
}
