"""Strings on which tokenizers differ: the corpus of `expected/tokenizer.json`.

`cases()` yields (text, parse_special): with parse_special, "<|im_end|>" in the text is the control token; without,
it is the characters.
"""

SENTENCES = [
    "", " ", "  ", "   ", "a", " a", "a ", " a ", "Hello", " Hello", "Hello, world!", "Hello world", "hello  world",
    "hello   world   ", "The quick brown fox jumps over the lazy dog.", "THE QUICK BROWN FOX", "tHe qUiCk",
    "It's", "it's, I'm, you're, we've, they'll, he'd, don't", "IT'S, I'M, YOU'RE, WE'VE, THEY'LL, HE'D", "'s't're've",
    "It’s, I’m, you’re — “quoted” ‘single’", "rock'n'roll", "o'clock's", "''''", "\"\"\"", "...", "…", "?!?!", "---", "–—―",
    "e.g. i.e. etc.", "U.S.A.", "Dr. Smith's Ph.D.", "semi;colon:colon", "(parenthesis) [bracket] {brace} <angle>",
    "user@example.org", "https://example.org/a/b?c=d&e=f#g", "C:\\Users\\name\\file.txt", "/usr/local/bin:/usr/bin",
    "snake_case camelCase PascalCase kebab-case SCREAMING_SNAKE", "__init__", "a_b_c_", "_", "antidisestablishmentarianism",
    "Donaudampfschifffahrtsgesellschaftskapitän", "supercalifragilisticexpialidocious" * 3,
    "To be, or not to be, that is the question:\nWhether 'tis nobler in the mind to suffer",
]

WHITE_SPACE = [
    "\n", "\n\n", "\n\n\n", "\t", "\t\t", "\r\n", "\r", "\n ", " \n", " \n ", "\n\t", "\t\n", "\n\n  x", "a\nb", "a\n\nb",
    "a \n b", "a\tb", "a\t b", "a \tb", "  leading", "trailing  ", "\n  leading", "a  b   c    d     e", "a\r\nb\r\n",
    "    four", "        eight", "\tone\n\t\ttwo\n\t\t\tthree", " " * 17, " " * 100, "\n" * 17, "x" + " " * 31 + "y",
    "\u00a0", "a\u00a0b", "\u00a0\u00a0x", "\u2003em space", "\u200bzero\u200bwidth", "\u3000全角", "\u2028line", "\u2029para",
    "\x0b", "\x0c", "a\x0cb", "\x85", "\ufeffbom", "\u1680ogham", "\u205fmedium", "\u202fnarrow", " \u00a0 ", "\u2009thin",
]

NUMBERS = [
    "0", "1", "12", "123", "1234", "12345", "1234567890", " 1", " 12", " 2024", "3.14159", "-1", "+1", "1,000,000",
    "1e10", "1.5e-7", "0x1F", "0b1010", "50%", "$19.99", "€5", "£1,234.56", "10:30", "2024-11-30T12:41:19Z", "1st 2nd 3rd",
    "½ ¼ ¾", "x²+y³", "H₂O", "①②③", "Ⅷ", "٣٤٥", "१२३", "一二三", "๑๒๓", "１２３", "1a2b3c", "a1b2c3", "1.2.3-rc.4", "192.168.0.1",
    "12 34 56", "1\n2\n3", "7  7", "²", "𝟙𝟚𝟛", "٪", "৪", "5'11\"", "100_000", "v2", "2x", "-0", "1/2",
]

CODE = [
    "fn main() {\n    println!(\"Hello, world!\");\n}\n",
    "def f(x: int) -> int:\n\treturn x ** 2  # square\n",
    "for (int i = 0; i < n; i++) { sum += a[i]; }",
    "if (a != b && c == d || !e) { return a?.b ?? c; }",
    "SELECT * FROM users WHERE id = 1 AND name LIKE '%O''Brien%';",
    "<!DOCTYPE html>\n<html lang=\"en\"><body><p>Hi&nbsp;there</p></body></html>",
    "{\"key\": [1, 2.5, null, true], \"nested\": {\"a\": \"b\\n\"}}",
    "apiVersion: v1\nkind: Pod\nmetadata:\n  name: test\n",
    "#!/bin/sh\nset -eu\necho \"$HOME\" | sed 's/a/b/g'\n",
    "let x = a => a.map(b => `${b}`);", "\\begin{equation} E = mc^2 \\end{equation}", "#include <stdio.h>",
    "|a|b|\n|-|-|\n|1|2|", "```rust\nlet a = 1;\n```", "// comment\n/* block */\n# hash", "a->b::c.d", "x+=1;y-=2;z*=3", "!=", "===",
    "<<>>", "&&||", "\\n\\t\\\\", "@decorator", "$variable", "%s %d %05.2f", "~/.config", "**bold** _italic_ ~~strike~~", "^_^",
    "        return None\n\n\nclass A(B):\n    pass\n", "0xDEADBEEF", "regex: ^[a-z]+\\d*$", "k8s.io/api/core/v1",
]

SCRIPTS = [
    "Français: l'été, où, cœur, naïve, garçon", "Deutsch: Größe, Straße, Übermut, äöü", "Español: ¿Qué? ¡Señor! niño",
    "Português: ação, coração, não", "Polski: zażółć gęślą jaźń", "Čeština: příliš žluťoučký kůň", "Türkçe: ığdır İstanbul",
    "Magyar: árvíztűrő tükörfúrógép", "Íslenska: þjóð, æðar", "Tiếng Việt: Đường phố Hà Nội", "Русский: Привет, мир!",
    "Українська: їжак ґанок", "Ελληνικά: Καλημέρα κόσμε", "Ἀρχαῖα: μῆνιν ἄειδε θεά", "עברית: שלום עולם", "עִבְרִית מְנֻקֶּדֶת",
    "العربية: مرحبا بالعالم", "فارسی: سلام دنیا", "اردو: ہیلو", "हिन्दी: नमस्ते दुनिया", "বাংলা: ওহে বিশ্ব", "தமிழ்: வணக்கம்",
    "తెలుగు: హలో", "ಕನ್ನಡ: ನಮಸ್ಕಾರ", "മലയാളം: നമസ്കാരം", "ไทย: สวัสดีชาวโลก", "ລາວ: ສະບາຍດີ", "မြန်မာ: မင်္ဂလာပါ", "ខ្មែរ: សួស្តី",
    "中文：你好，世界！", "繁體中文：歡迎光臨", "日本語：こんにちは、世界。", "カタカナ ｶﾀｶﾅ", "漢字かな交じり文です。", "한국어: 안녕하세요 세계",
    "ᄒ\u1161\u11ab글", "ქართული: გამარჯობა", "Հայերեն: Բարեւ", "አማርኛ: ሰላም", "ᏣᎳᎩ", "ᐃᓄᒃᑎᑐᑦ", "བོད་ཡིག", "ꦗꦮ", "𐌰𐌱𐌲", "𓀀𓁐𓂀", "𠜎𠜱𡿺",
    "mixed: Hello мир 世界 عالم", "ﬁ ligature", "Å vs A\u030a", "é vs e\u0301", "i\u0307", "ẞ ß SS", "ǅ ǆ Ǆ", "a\u0300\u0301\u0302\u0303", "\u0301",
    "ａｂｃ ＡＢＣ", "𝓗𝓮𝓵𝓵𝓸", "𝔸𝔹ℂ", "ⓗⓔⓛⓛⓞ", "ʇxǝʇ", "ªº", "ˈfəʊnɛtɪks", "̷̢Z̸a̶l̵g̷o̸",
]

SYMBOLS = [
    "😀", " 😀", "😀😀😀", "👍🏽", "👩‍👩‍👧‍👦", "🏳️‍🌈", "🇩🇪🇫🇷", "1️⃣", "❤️", "☃", "text😀text", "🤷🏻‍♀️ shrug", "🧑🏿‍🚀", "🫠🫡",
    "∀x∈ℝ: ⌈x⌉ = −⌊−x⌋", "∑∏∫√∞≈≠≤≥±×÷", "α→β⇒γ", "←↑→↓", "■□▲△●○", "♠♥♦♣", "©®™", "§¶†‡•", "°C µm Ω", "¢£¤¥₿₹",
    "«»‹›„“”", "┌─┐\n│ │\n└─┘", "█▓▒░", "⠓⠑⠇⠇⠕", "𝄞♩♪♫", "⚠️", "\u200d", "\ufe0f", "\u202eright\u202c", "\u00ad soft", "\ue000", "\uffff", "\U0010ffff",
    "\x01\x02\x03", "\x00", "a\x00b", "\x7f", "\x1b[31mred\x1b[0m", "�", "``", "´", "¨", "·", "‰", "№ 5", "★★★☆☆", "–5", "x̄",
]

SPECIAL = [
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n",
    " <|im_end|> ", "a<|im_end|>b", "<|im_end|><|im_end|>", "<|im_end", "<|im_end|", "<|IM_END|>", "<|im_end|>\n\n", "\n<|im_start|>",
    "<repo_name>", "<reponame>", "<file_sep>", "<jupyter_start>", "<issue_start>", "<empty_output>", "<|unknown|>", "<s>", "</s>",
    "<unk>", "<pad>", "[INST]", "  <|im_start|>  system", "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, "
    "trained by Hugging Face<|im_end|>\n<|im_start|>user\nWhat is 2 + 2?<|im_end|>\n<|im_start|>assistant\n",
]


def cases():
    """Every (text, parse_special) pair, in a fixed order."""
    for text in SENTENCES + WHITE_SPACE + NUMBERS + CODE + SCRIPTS + SYMBOLS:
        yield text, False
    for text in SPECIAL:
        yield text, True
        yield text, False
