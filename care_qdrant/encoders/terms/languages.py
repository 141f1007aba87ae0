"""The languages of BM25 whose words are stemmed, with the function words that are left out.

To add a language: its list of function words here, under the name of its stemmer in ``snowballstemmer``. The lists also
tell the language of a corpus. They hold articles, pronouns, prepositions, conjunctions and auxiliary verbs, and nothing
that may say what a text is about.
"""

import re
from collections.abc import Iterable, Mapping
from itertools import islice

HAN = "\u3007\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U000323af"
"""Han characters, as a regular expression's character class has them."""
UNSPACED = HAN + "\u0e01-\u0eff\u1000-\u109f\u1100-\u11ff\u1780-\u17dd\u3041-\u30ff\u31f0-\u31ff\uac00-\ud7a3"
"""Characters of scripts that put no spaces between words, or attach particles to them: Han, kana, Hangul, Thai, Lao,
Burmese, Khmer."""

CHINESE = "chinese"
WORDS = "words"
"""Name for all other languages: their words stay as they are."""

_LISTS = {
    "english": """a about above after again against all also am an and any are aren as at be because been
    before being below between both but by can cannot could couldn d did didn do does doesn doing don down
    during each few for from further had hadn has hasn have haven having he her here hers herself him himself
    his how i if in into is isn it its itself ll m me more most my myself no nor not of off on once only or
    other our ours ourselves out over own re s same she should shouldn so some such t than that the their theirs
    them themselves then there these they this those through to too under until up ve very was wasn we were
    weren what when where which while who whom whose why will with won would wouldn you your yours yourself
    yourselves""",
    "german": """aber alle als also am an auch auf aus bei bin bis bist da damit das dass dem den denn der
    des dich die dies diese diesem diesen dieser dieses dir doch du durch ein eine einem einen einer eines er es
    euch für habe haben hat hatte hatten ich ihm ihn ihnen ihr ihre ihrem ihren ihrer im in ist ja kann können
    man mein mich mir mit nach nicht noch nur ob oder ohne sehr sein seine seinem seinen seiner sich sie sind so
    über um und uns unser unter vom von vor war waren was wegen weil welche welcher wenn wer werden wie wir wird
    wo wurde wurden zu zum zur zwischen""",
    "french": """à ai après au aussi aux avec avoir c car ce ceci cela ces cet cette ceux chez comme d dans
    de des donc dont du elle elles en entre est et été être eux il ils j je l la le les leur leurs lui m ma mais
    me même mes moi mon n ne nos notre nous on ont ou où par pas peut plus pour qu quand que quel quelle quelles
    quels qui quoi s sa sans se ses si son sont sous sur t ta te tes toi ton tu un une vers vos votre vous y""",
    "spanish": """a al ante aunque cada como con cual cuales cuando de del desde donde dos e el él ella ellas
    ellos en entre era eran es esa esas ese eso esos está están esta estas este esto estos fue fueron ha han
    hasta hay la las le les lo los más me mi mis muy ni no nos nosotros o os para pero por porque que qué quien
    se según ser si sí sin sobre son su sus también te tiene tu tus u un una unas uno unos y ya yo""",
    "italian": """a ad agli ai al alla alle allo anche c che chi ci coi col come con cui d da dagli dai dal
    dalla dalle dallo degli dei del della delle dello di dove e è ed era erano essere fra gli ha hanno i il in
    io l la le lei li lo loro lui ma mi mia mio ne negli nei nel nella nelle nello noi non nostro o per perché
    più quale quando quella quelle quelli quello questa queste questi questo se sei si sono su sua sue sugli sui
    sul sulla sulle sullo suo suoi ti tra tu tua tuo un una uno vi voi""",
    "portuguese": """a à ao aos as às até com como da das de dela dele deles depois do dos e é ela elas ele eles
    em entre era eram essa essas esse esses esta está estão estas este estes eu foi foram há isso isto já lhe
    mais mas me mesmo meu minha muito na não nas nem no nos nós nossa nosso num numa o os ou para pela pelas
    pelo pelos por porque qual quando que quem se sem ser seu seus sua suas são também te tem têm tu um uma uns
    você vocês""",
    "dutch": """aan al alles als altijd andere ben bij daar dan dat de der deze die dit doch door dus een en
    er ge geen had heb hebben heeft hem het hier hij hoe hun ik in is ja je kan kon kunnen maar me meer men met
    mij mijn na naar niet niets nog nu of om onder ons ook op over reeds te toch toen tot u uit uw van veel voor
    waren was wat we wel werd wezen wie wij wil worden wordt zal ze zelf zich zij zijn zo zonder zou""",
    "russian": """а без бы был была были было быть в вам вас во вот все всего вы где да для до его ее её если
    есть еще ещё же за и из или им их к как ко когда кто ли мне мы на над нас не него нее неё нет ни них но о об
    он она они оно от по под при с со так также там то того тоже только том ты у уже чем что чтобы эта эти это
    этого этой этот я""",
}
FUNCTION_WORDS: Mapping[str, frozenset[str]] = {
    language: frozenset(words.split()) for language, words in _LISTS.items()
}
"""Words that are left out, by language."""
LANGUAGES = (CHINESE, WORDS, *FUNCTION_WORDS)

SAMPLED_TEXTS = 256
"""Number of texts that decide the language of a new collection."""
_CHARACTERS = 1_000
"""Number of characters of each that are read."""
_MIN_FUNCTION_WORDS = 0.08
"""Least fraction of function words of a language. Running text has a third, titles have a tenth."""


def language_of(texts: Iterable[str]) -> str:
    """Return the language of BM25 that suits texts like the first ones; Chinese for none.

    Texts with as many Han characters as words count as Chinese. Others have the language whose function words
    they hold most, or `WORDS` if they hold few of any.
    """
    sample = [text[:_CHARACTERS].lower() for text in islice(texts, SAMPLED_TEXTS)]
    text = "\n".join(sample)
    # Compiled here and not at import: command-line options import the names of the languages.
    words = re.findall(rf"[^\W\d_{UNSPACED}]+", text)
    han, unspaced = (len(re.findall(f"[{script}]", text)) for script in (HAN, UNSPACED))
    if unspaced >= len(words):
        return CHINESE if 2 * han >= unspaced else WORDS  # Japanese has fewer Han characters than others
    shares = {
        language: sum(map(function_words.__contains__, words)) / len(words)
        for language, function_words in FUNCTION_WORDS.items()
    }
    best = max(shares, key=shares.__getitem__)
    return best if shares[best] >= _MIN_FUNCTION_WORDS else WORDS
